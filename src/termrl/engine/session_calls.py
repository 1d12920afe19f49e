"""Client sessions: begun, kept alive by heartbeats, finished; and what a client is told at its start.

A session that has not been heard of for a while is over: what it held in memory is let go, its checkpoints
stay. Sessions outlive a killed engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from termrl.engine.core import Engine
from termrl.engine.journal import Journal
from termrl.engine.promises import Promises, error_response, read_fields
from termrl.engine.sampling import UnknownModel

SESSION_SECONDS = 1800.0
"""How long a session lives without a heartbeat; the SDK sends one every ten seconds."""
_WATCH_SECONDS = 30.0

_log = logging.getLogger(__name__)


class Sessions:
    def __init__(self, engine: Engine, promises: Promises, journal: Journal | None) -> None:
        self._engine = engine
        self._promises = promises
        self._journal = journal
        self.records: dict[str, dict[str, Any]] = journal.sessions() if journal is not None else {}
        now = time.monotonic()
        self._heard = dict.fromkeys(self.records, now)

    def routes(self, api: str) -> list[web.RouteDef]:
        return [
            web.post(f"{api}/client/config", self._client_config),
            web.post(f"{api}/client/dynamic_config", self._client_dynamic_config),
            web.post(f"{api}/create_session", self._create),
            web.post(f"{api}/session_heartbeat", self._heartbeat),
            web.post(f"{api}/sessions/{{session_id}}/finish", self._finish_call),
            web.post(f"{api}/telemetry", self._telemetry),
        ]

    def known(self, session_id: str) -> str:
        if session_id not in self.records:
            raise UnknownModel(f"There is no session {session_id!r}; create one first.")
        return session_id

    def get(self, session_id: str) -> Mapping[str, Any]:
        return self.records[self.known(session_id)]

    async def finish(self, session_id: str) -> None:
        if self.records.pop(session_id, None) is None:
            return
        self._heard.pop(session_id, None)
        self._promises.futures.cancel_session(session_id)
        await self._promises.do(lambda: self._engine.finish(session_id))
        if self._journal is not None:
            self._journal.drop_session(session_id)

    async def watch(self) -> None:
        """Ends the sessions that nobody has been heard of in; runs as long as the engine."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            await self.end_silent()

    async def end_silent(self) -> None:
        now = time.monotonic()
        for session_id in [name for name, heard in self._heard.items() if now - heard > SESSION_SECONDS]:
            _log.info("The session %s has sent no heartbeat for a long time; it is over.", session_id)
            await self.finish(session_id)

    async def _client_config(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                # In turn rather than at once: gradients are then summed in the order of the data.
                "parallel_fwdbwd_chunks": False,
                # The checkpoint knows more of its shape than the SDK can ask for: alpha, whole weights.
                "create_model_via_load_weights": True,
                "sample_enable_stuck_detection": False,
            }
        )

    async def _client_dynamic_config(self, _: web.Request) -> web.Response:
        return web.json_response({"sample_cancel_enabled": True})

    async def _telemetry(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "accepted"})

    async def _create(self, request: web.Request) -> web.Response:
        fields = read_fields(await request.read())
        session_id = uuid.uuid4().hex
        record = {
            "user_metadata": fields.object("user_metadata").all() or None,
            "display_name": fields.optional_text("display_name"),
            "created_at": datetime.now(UTC).isoformat(),
        }
        if self._journal is not None:
            self._journal.put_session(session_id, record)
        self.records[session_id] = record
        self._heard[session_id] = time.monotonic()
        return web.json_response({"type": "create_session", "session_id": session_id})

    async def _heartbeat(self, request: web.Request) -> web.Response:
        session_id = read_fields(await request.read()).text("session_id")
        if session_id not in self.records:
            return error_response(410, f"There is no session {session_id!r}.")
        self._heard[session_id] = time.monotonic()
        return web.json_response({"type": "session_heartbeat"})

    async def _finish_call(self, request: web.Request) -> web.Response:
        await self.finish(request.match_info["session_id"])
        return web.Response(status=204)
