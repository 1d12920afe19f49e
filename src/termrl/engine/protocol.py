"""The Tinker protocol over HTTP: routes, the key, errors, futures; what is behind a route is in `*_calls`.

Requests are read and answered on the event loop; everything that computes goes to the worker's thread.
Every call needs the key. A body that cannot be read gets a 4xx, a request that cannot be done fails as its
future with category "user", and neither harms the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from aiohttp import web

from termrl.engine.catalog import check_model
from termrl.engine.checkpoints import CheckpointMissing
from termrl.engine.core import Engine
from termrl.engine.downloads import Downloads
from termrl.engine.fields import MalformedRequest
from termrl.engine.futures import Futures, Result
from termrl.engine.journal import Journal
from termrl.engine.keys import KEY_PREFIX
from termrl.engine.listings import Listings
from termrl.engine.long_calls import LongCall
from termrl.engine.promises import Promises, error_response, read_fields
from termrl.engine.sampling import UnknownModel
from termrl.engine.sampling_calls import SamplingCalls
from termrl.engine.session_calls import Sessions
from termrl.engine.training_calls import TrainingCalls
from termrl.engine.worker import Worker
from termrl.errors import UserError

API = "/api/v1"
LONG_POLL_SECONDS = 30.0
COMPILATION_POLL_SECONDS = 5.0
MAX_BODY_BYTES = 256 << 20

_log = logging.getLogger(__name__)


class ServeError(UserError):
    """The engine was asked to listen in a way it does not."""


class EngineServer:
    """One engine behind one key. `start` listens and returns the port.

    One that is `durable` keeps a journal: killed and started again on the same state directory, it has every
    session, training client, sampling session and result that a client was told of.
    """

    def __init__(
        self,
        state_dir: Path,
        models: Sequence[str],
        api_key: str,
        *,
        durable: bool = False,
        dtype: str = "float32",
        tensor_parallel: int = 1,
    ) -> None:
        if not api_key.startswith(KEY_PREFIX):
            raise ServeError(f"The engine's key must start with {KEY_PREFIX!r}, as the SDK wants it.")
        for name in models:
            check_model(name)
        self._models = tuple(models)
        self._api_key = api_key.encode()
        self._journal = Journal(state_dir / "journal.db") if durable else None
        self._worker = Worker()
        self._engine = Engine(state_dir, self._worker, self._journal, dtype, tensor_parallel)
        self._runner: web.AppRunner | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        self._worker.start()
        self._promises = promises = Promises(self._worker, Futures(self._journal))
        self.sessions = sessions = Sessions(self._engine, promises, self._journal)
        training = TrainingCalls(self._engine, promises, sessions)
        sampling = SamplingCalls(self._engine, promises, sessions)
        listings = Listings(self._engine, promises.do, sessions)
        self._downloads = downloads = Downloads(self._engine, promises.do, self._api_key)
        self._long_calls = training.long_calls() | sampling.long_calls()
        parts = (sessions, training, sampling, listings, downloads)
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.add_routes([route for part in parts for route in part.routes(API)])
        app.add_routes(self._own_routes())
        await self._go_on()
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self._watch = asyncio.create_task(sessions.watch())
        bound: socket.socket = site._server.sockets[0]  # type: ignore[union-attr]
        return int(bound.getsockname()[1])

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        if self._runner is not None:
            await self._runner.cleanup()
        await asyncio.to_thread(self._worker.stop, 10.0)
        if self._journal is not None:
            self._journal.close()

    async def _go_on(self) -> None:
        """After a kill: brings sampling sessions and training clients back and takes up what was not done."""
        if self._journal is None:
            return
        await self._promises.do(self._engine.sampling.restore)
        saved = await self._promises.do(self._engine.restore_trainers)
        futures = self._promises.futures
        for entry in self._journal.requests():
            pending = futures.restore(entry)
            call, state = self._long_calls[entry.call], saved.get(entry.model or "")
            if state is not None and entry.n == state.n:
                futures.resolve(pending, Result(state.result.encode()))
            is_saved = state is not None and entry.n <= state.n
            needed = not pending.done.is_set() or (call.changes_model and not is_saved)
            if needed and entry.body is not None:
                call.begin(entry.body, pending)

    def _own_routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"{API}/healthz", self._healthz),
            web.get(f"{API}/get_server_capabilities", self._capabilities),
            web.post(f"{API}/retrieve_future", self._retrieve_future),
            web.post(f"{API}/cancel_future", self._cancel_future),
            *(web.post(f"{API}/{name}", partial(self._begin, name)) for name in self._long_calls),
        ]

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("X-API-Key", "").encode()
        if not (hmac.compare_digest(given, self._api_key) or self._downloads.is_signed(request)):
            return error_response(401, "The X-API-Key header does not hold this engine's key.")
        try:
            return await handler(request)
        except web.HTTPException as error:
            return error_response(
                error.status, f"This engine does not have {request.method} {request.path}: {error.reason}."
            )
        except MalformedRequest as error:
            return error_response(400, str(error))
        except (UnknownModel, CheckpointMissing) as error:
            return error_response(404, str(error))
        except UserError as error:
            return error_response(400, str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return error_response(500, "The engine failed on this request; its log has the details.")

    async def _begin(self, name: str, request: web.Request) -> web.Response:
        """Promises the result of a long call; one that came before gets the promise it got then."""
        body = await request.read()
        call: LongCall = self._long_calls[name]
        pending, is_new = self._promises.futures.submit(call.identify(body), name, body)
        if is_new:
            call.begin(body, pending)
        return web.json_response({"request_id": pending.request_id} | call.answer(body, pending))

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _capabilities(self, _: web.Request) -> web.Response:
        bases = [await self._promises.do(partial(self._engine.base_model, name)) for name in self._models]
        supported = [
            {
                "model_name": base.name,
                "max_context_length": base.config.max_position_embeddings,
                "trainable": True,
                "sampleable": True,
            }
            for base in bases
        ]
        return web.json_response({"supported_models": supported})

    async def _retrieve_future(self, request: web.Request) -> web.Response:
        request_id = read_fields(await request.read()).text("request_id")
        try:
            result, compiling = await self._wait_for(request_id)
        except KeyError:
            return error_response(404, f"There is no request {request_id!r}, or it was fetched long ago.")
        if result is None:
            body = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            if compiling is not None:
                # The SDK logs this for the user, once a minute.
                body |= {"queue_state": "paused_capacity", "queue_state_reason": f"the engine is {compiling}"}
            return web.json_response(body, status=408)
        return web.Response(body=result.body, content_type=result.content_type)

    async def _wait_for(self, request_id: str) -> tuple[Result | None, str | None]:
        """A result, if it comes within a long poll; cut short where there is a compilation to tell of."""
        end = time.monotonic() + LONG_POLL_SECONDS
        while True:
            result = await self._promises.futures.fetch(request_id, COMPILATION_POLL_SECONDS)
            compiling = self._engine.compiling
            if result is not None or compiling is not None or time.monotonic() > end:
                return result, compiling

    async def _cancel_future(self, request: web.Request) -> web.Response:
        self._promises.futures.cancel(read_fields(await request.read()).text("request_id"))
        return web.Response(status=204)
