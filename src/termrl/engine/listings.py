"""The read-only half of the protocol: what runs, checkpoints, samplers and sessions there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from termrl.engine.checkpoints import KINDS, CheckpointInfo, CheckpointPath
from termrl.engine.core import Engine, UnknownModel
from termrl.engine.wire import Fields, MalformedRequest

Do = Callable[[Callable[[], Any]], Awaitable[Any]]


class Listings:
    def __init__(self, engine: Engine, do: Do, sessions: Mapping[str, Mapping[str, Any]]) -> None:
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
            web.get(f"{api}/checkpoints", self._checkpoints),
            web.get(f"{api}/sessions", self._list_sessions),
            web.get(f"{api}/sessions/{{session_id}}", self._session),
        ]

    async def _weights_info(self, request: web.Request) -> web.Response:
        try:
            text = Fields(await request.json()).text("tinker_path")
        except ValueError as error:
            raise MalformedRequest(f"The body is not JSON: {error}.") from None
        info = await self._do(lambda: self._engine.checkpoints.info(CheckpointPath.parse(text)))
        return web.json_response(
            {
                "base_model": info.base_model,
                "is_lora": True,
                "lora_rank": info.spec.rank,
                "train_unembed": info.spec.train_unembed,
                "train_mlp": info.spec.train_mlp,
                "train_attn": info.spec.train_attn,
            }
        )

    async def _sampler(self, request: web.Request) -> web.Response:
        sampler_id = request.match_info["sampler_id"]
        session = await self._do(lambda: self._engine.session(sampler_id))
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
        path = CheckpointPath(*(request.match_info[part] for part in ("run", "kind", "name")))
        path.check()
        await self._do(lambda: self._engine.checkpoints.delete(path))
        return web.Response(status=204)

    async def _list_sessions(self, request: web.Request) -> web.Response:
        page, _ = _page(request, list(self._sessions))
        return web.json_response({"sessions": page})

    async def _session(self, request: web.Request) -> web.Response:
        session_id = request.match_info["session_id"]
        if session_id not in self._sessions:
            raise UnknownModel(f"There is no session {session_id!r}.")
        runs, samplers = await self._do(lambda: self._engine.members(session_id))
        known = self._sessions[session_id]
        answer = {"training_run_ids": runs, "sampler_ids": samplers}
        return web.json_response(answer | dict(known))

    def _collect_runs(self) -> dict[str, dict[str, Any]]:
        """Runs that train now and runs that left checkpoints."""
        now = datetime.now(UTC).isoformat()
        runs: dict[str, dict[str, Any]] = {}
        for model_id, trainer in self._engine.trainers().items():
            runs[model_id] = _run_record(model_id, trainer.base.name, trainer.spec.rank, now)
        for path, info in self._engine.checkpoints.list():
            record = runs.setdefault(
                path.run, _run_record(path.run, info.base_model, info.spec.rank, _when(info.created))
            )
            last = "last_checkpoint" if path.kind == "weights" else "last_sampler_checkpoint"
            record[last] = _describe(path, info)
        return runs


def _run_record(run: str, base_model: str, rank: int, when: str) -> dict[str, Any]:
    return {
        "training_run_id": run,
        "base_model": base_model,
        "model_owner": "local",
        "is_lora": True,
        "lora_rank": rank,
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
