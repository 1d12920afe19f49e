"""What runs, checkpoints, samplers and sessions there are: listed by pages, searched, copied, deleted.

An engine has one user and no projects, invoices, public checkpoints or traces; calls about those are refused
with a sentence.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from termrl.engine.checkpoints import KINDS, CheckpointInfo, CheckpointPath
from termrl.engine.core import Engine
from termrl.engine.downloads import checkpoint_path
from termrl.engine.fields import MalformedRequest
from termrl.engine.promises import read_fields
from termrl.engine.requests import Unsupported, read_ttl
from termrl.engine.sampling import UnknownModel
from termrl.engine.session_calls import Sessions

Do = Callable[[Callable[[], Any]], Awaitable[Any]]


class Listings:
    def __init__(self, engine: Engine, do: Do, sessions: Sessions) -> None:
        self._engine = engine
        self._do = do
        self._sessions = sessions

    def routes(self, api: str) -> list[web.RouteDef]:
        checkpoint = f"{api}/training_runs/{{run}}/checkpoints/{{kind}}/{{name}}"
        return [
            web.post(f"{api}/weights_info", self._weights_info),
            web.get(f"{api}/samplers/{{sampler_id}}", self._sampler),
            web.get(f"{api}/training_runs", self._runs),
            web.get(f"{api}/training_runs/{{run}}", self._run),
            web.get(f"{api}/training_runs/{{run}}/checkpoints", self._run_checkpoints),
            web.delete(checkpoint, self._delete_checkpoint),
            web.put(f"{checkpoint}/ttl", self._set_ttl),
            web.post(f"{api}/copy_weights", self._copy_weights),
            web.get(f"{api}/checkpoints", self._checkpoints),
            web.get(f"{api}/sessions", self._list_sessions),
            web.post(f"{api}/sessions/search", self._search_sessions),
            web.get(f"{api}/sessions/{{session_id}}", self._session),
            web.post(
                f"{checkpoint}/publish", _refuse("This engine publishes no checkpoints: it has one user.")
            ),
            web.delete(
                f"{checkpoint}/publish", _refuse("This engine publishes no checkpoints: it has one user.")
            ),
            web.put(f"{api}/sessions/{{session_id}}/project", _refuse("This engine has no projects.")),
            web.get(f"{api}/sessions/{{session_id}}/trace_export", _refuse("This engine records no traces.")),
            web.get(f"{api}/audit", _refuse("This engine keeps no audit log.")),
            web.get(f"{api}/billing/usage/events", _refuse("This engine sends no bills.")),
            web.get(f"{api}/billing/usage/checkpoints/current", _refuse("This engine sends no bills.")),
            web.post(f"{api}/create_custom_loss", _refuse("This engine runs custom losses in the client.")),
        ]

    async def _weights_info(self, request: web.Request) -> web.Response:
        text = read_fields(await request.read()).text("tinker_path")
        info = await self._do(lambda: self._engine.checkpoints.info(CheckpointPath.parse(text)))
        return web.json_response(
            {
                "base_model": info.base_model,
                "is_lora": info.spec.is_lora,
                "lora_rank": info.spec.rank or None,
                "train_unembed": info.spec.train_unembed,
                "train_mlp": info.spec.train_mlp,
                "train_attn": info.spec.train_attn,
            }
        )

    async def _sampler(self, request: web.Request) -> web.Response:
        sampler_id = request.match_info["sampler_id"]
        session = await self._do(lambda: self._engine.sampling.session(sampler_id))
        # The SDK opens a sampler's tokenizer by this name, so it has to be the directory.
        answer = {"sampler_id": sampler_id, "base_model": session.base.tokenizer_id}
        return web.json_response(answer | {"model_path": session.path and str(session.path)})

    async def _runs(self, request: web.Request) -> web.Response:
        runs = list((await self._do(self._collect_runs)).values())
        page, cursor = _page(request, runs)
        return web.json_response({"training_runs": page, "cursor": cursor})

    async def _run(self, request: web.Request) -> web.Response:
        run = request.match_info["run"]
        runs = await self._do(self._collect_runs)
        if run not in runs:
            raise UnknownModel(f"There is no training run {run!r}.")
        return web.json_response(runs[run])

    async def _run_checkpoints(self, request: web.Request) -> web.Response:
        run = request.match_info["run"]
        found = await self._do(lambda: self._engine.checkpoints.list(run))
        return web.json_response({"checkpoints": [_describe(*pair) for pair in found]})

    async def _checkpoints(self, request: web.Request) -> web.Response:
        found = await self._do(lambda: self._engine.checkpoints.list())
        page, cursor = _page(request, [_describe(*pair) for pair in found])
        return web.json_response({"checkpoints": page, "cursor": cursor})

    async def _delete_checkpoint(self, request: web.Request) -> web.Response:
        path = checkpoint_path(request)
        await self._do(lambda: self._engine.checkpoints.delete(path))
        return web.Response(status=204)

    async def _set_ttl(self, request: web.Request) -> web.Response:
        path, seconds = checkpoint_path(request), read_ttl(read_fields(await request.read()))
        expires = None if seconds is None else time.time() + seconds
        await self._do(lambda: self._engine.checkpoints.set_expiry(path, expires))
        return web.Response(status=204)

    async def _copy_weights(self, request: web.Request) -> web.Response:
        fields = read_fields(await request.read())
        source = CheckpointPath.parse(fields.text("source_path"))
        key = request.headers.get("X-Idempotency-Key", uuid.uuid4().hex)
        run = f"{uuid.uuid5(uuid.NAMESPACE_OID, key).hex}:train:0"
        seconds = read_ttl(fields)
        expires = None if seconds is None else time.time() + seconds
        target = CheckpointPath(run, source.kind, source.name)

        def copy() -> None:
            # The SDK repeats a copy whose answer it did not see.
            if self._engine.checkpoints.find(target) is None:
                self._engine.checkpoints.copy(source, target, expires)

        await self._do(copy)
        return web.json_response({"tinker_path": str(target)})

    async def _list_sessions(self, request: web.Request) -> web.Response:
        page, _ = _page(request, list(self._sessions.records))
        return web.json_response({"sessions": page})

    async def _session(self, request: web.Request) -> web.Response:
        session_id = request.match_info["session_id"]
        known = self._sessions.get(session_id)
        runs, samplers = await self._do(lambda: self._engine.members(session_id))
        answer = {"training_run_ids": runs, "sampler_ids": samplers}
        named = {name: known[name] for name in ("user_metadata", "display_name")}
        return web.json_response(answer | named)

    async def _search_sessions(self, request: web.Request) -> web.Response:
        fields = read_fields(await request.read())
        wanted, name = fields.optional_text("session_id"), fields.optional_text("display_name")
        metadata = fields.object("user_metadata").all()
        statuses = fields.raw("statuses")
        if statuses is not None and not _asks_for_active(statuses):
            return web.json_response({"sessions": [], "next_cursor": None})
        found = [
            (str(record["created_at"]), session_id, record)
            for session_id, record in self._sessions.records.items()
            if _matches(session_id, record, wanted, name, metadata)
        ]
        found.sort(reverse=True)
        if fields.raw("cursor") is not None:
            cursor = fields.object("cursor")
            after = (_moment(cursor.text("last_created_at")), cursor.text("last_session_id"))
            found = [item for item in found if item[:2] < after]
        limit = fields.integer("limit", 50)
        if not 1 <= limit <= 200:
            raise MalformedRequest(f"limit must be between 1 and 200, not {limit}.")
        page = found[:limit]
        counts = await self._do(self._checkpoints_by_session)
        answer: dict[str, Any] = {
            "sessions": [_summary(*item, counts.get(item[1], (0, 0))) for item in page],
            "next_cursor": None,
        }
        if len(found) > limit:
            answer["next_cursor"] = {"last_created_at": page[-1][0], "last_session_id": page[-1][1]}
        return web.json_response(answer)

    def _checkpoints_by_session(self) -> dict[str, tuple[int, int]]:
        counts: dict[str, tuple[int, int]] = {}
        for path, info in self._engine.checkpoints.list():
            number, size = counts.get(path.run.split(":")[0], (0, 0))
            counts[path.run.split(":")[0]] = (number + 1, size + info.size)
        return counts

    def _collect_runs(self) -> dict[str, dict[str, Any]]:
        """Runs that train now and runs that left checkpoints."""
        now = datetime.now(UTC).isoformat()
        runs: dict[str, dict[str, Any]] = {}
        for model_id, trainer in self._engine.trainers().items():
            runs[model_id] = _run_record(model_id, trainer.base.name, trainer.spec.rank, now)
            runs[model_id]["user_metadata"] = self._engine.user_metadata(model_id)
        for path, info in self._engine.checkpoints.list():
            record = runs.setdefault(
                path.run, _run_record(path.run, info.base_model, info.spec.rank, _when(info.created))
            )
            last = {"weights": "last_checkpoint", "sampler_weights": "last_sampler_checkpoint"}.get(path.kind)
            if last is not None:
                record[last] = _describe(path, info)
        return runs


def _refuse(sentence: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    """A call of the protocol that means nothing here."""

    async def refuse(_: web.Request) -> web.Response:
        raise Unsupported(sentence)

    return refuse


def _moment(text: str) -> str:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise MalformedRequest(f"'{text}' is not a date and time.") from None


def _asks_for_active(statuses: Any) -> bool:
    """A session that is known here is running: those that ended are forgotten."""
    if not isinstance(statuses, list):
        raise MalformedRequest("The field 'statuses' must be a list.")
    return any("active" in str(status) for status in statuses)


def _matches(
    session_id: str,
    record: Mapping[str, Any],
    wanted: str | None,
    name: str | None,
    metadata: Mapping[str, Any],
) -> bool:
    held = record.get("user_metadata") or {}
    if any(held.get(key) != value for key, value in metadata.items()):
        return False
    if wanted is None and name is None:
        return True
    shown = str(record.get("display_name") or "").lower()
    named = name is not None and all(word in shown for word in name.lower().split())
    return named or session_id == wanted


def _summary(
    created: str, session_id: str, record: Mapping[str, Any], checkpoints: Sequence[int]
) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "created_at": created,
        "owner": "local",
        "project_id": "local",
        "status": None,
        "checkpoints_count": checkpoints[0],
        "checkpoint_storage_bytes": checkpoints[1],
        "display_name": record.get("display_name"),
        "user_metadata": record.get("user_metadata"),
    }


def _run_record(run: str, base_model: str, rank: int, when: str) -> dict[str, Any]:
    return {
        "training_run_id": run,
        "base_model": base_model,
        "model_owner": "local",
        "is_lora": rank > 0,
        "lora_rank": rank or None,
        "last_request_time": when,
    }


def _describe(path: CheckpointPath, info: CheckpointInfo) -> dict[str, Any]:
    return {
        "checkpoint_id": f"{path.kind}/{path.name}",
        "checkpoint_type": KINDS[path.kind],
        "time": _when(info.created),
        "tinker_path": str(path),
        "size_bytes": info.size,
        "user_metadata": info.user_metadata,
        "expires_at": None if info.expires is None else _when(info.expires),
    }


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _page(request: web.Request, items: list[Any]) -> tuple[list[Any], dict[str, int]]:
    try:
        offset, limit = int(request.query.get("offset", 0)), int(request.query.get("limit", 100))
    except ValueError:
        raise MalformedRequest("offset and limit must be integers.") from None
    if offset < 0 or limit < 0:
        raise MalformedRequest("offset and limit must not be negative.")
    return items[offset : offset + limit], {"offset": offset, "limit": limit, "total_count": len(items)}
