"""The Tinker protocol over HTTP: sessions, long requests and their futures, sampling, checkpoints.

Requests are read and answered on the event loop; everything that computes goes to the worker's thread.
Every call needs the key. A body that cannot be read gets a 4xx, a request that cannot be done fails as its
future with category "user", and neither harms the engine.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import socket
import uuid
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from termrl.engine.catalog import resolve_model
from termrl.engine.checkpoints import CheckpointMissing
from termrl.engine.core import Engine, SampleJob, UnknownModel
from termrl.engine.futures import Futures, Pending, Result
from termrl.engine.keys import KEY_PREFIX
from termrl.engine.listings import Listings
from termrl.engine.requests import MAX_SAMPLES, read_adam, read_lora, read_sampling, refuse_unsupported
from termrl.engine.sampler import Answer
from termrl.engine.trainer import PassResult
from termrl.engine.wire import (
    PROTOBUF,
    Fields,
    MalformedRequest,
    read_pass_request,
    read_prompt,
    write_pass_result,
    write_sample_result,
)
from termrl.engine.worker import Job, Worker
from termrl.errors import UserError

LONG_POLL_SECONDS = 30.0
MAX_BODY_BYTES = 256 << 20

_log = logging.getLogger(__name__)


class ServeError(UserError):
    """The engine was asked to listen in a way it does not."""


class EngineServer:
    """One engine behind one key. `start` listens and returns the port."""

    def __init__(self, state_dir: Path, models: Sequence[str], api_key: str) -> None:
        if not api_key.startswith(KEY_PREFIX):
            raise ServeError(f"The engine's key must start with {KEY_PREFIX!r}, as the SDK wants it.")
        for name in models:
            resolve_model(name)
        self._models = tuple(models)
        self._api_key = api_key.encode()
        self._worker = Worker()
        self._engine = Engine(state_dir, self._worker)
        self._futures = Futures()
        self._sessions: dict[str, dict[str, Any]] = {}
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        self._loop = asyncio.get_running_loop()
        self._worker.start()
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.add_routes(self._routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        bound: socket.socket = site._server.sockets[0]  # type: ignore[union-attr]
        return int(bound.getsockname()[1])

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await asyncio.to_thread(self._worker.stop, 10.0)

    def _routes(self) -> list[web.RouteDef]:
        api = "/api/v1"
        posts: dict[str, Callable[[web.Request], Awaitable[web.Response]]] = {
            "client/config": self._client_config,
            "client/dynamic_config": self._client_dynamic_config,
            "create_session": self._create_session,
            "session_heartbeat": self._session_heartbeat,
            "sessions/{session_id}/finish": self._finish_session,
            "telemetry": self._telemetry,
            "create_model": self._create_model,
            "unload_model": self._unload_model,
            "get_info": self._get_info,
            "forward_backward": self._forward_backward,
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "load_weights": self._load_weights,
            "save_weights_for_sampler": self._save_weights_for_sampler,
            "create_sampling_session": self._create_sampling_session,
            "asample": self._asample,
            "retrieve_future": self._retrieve_future,
            "cancel_future": self._cancel_future,
        }
        listings = Listings(self._engine, self._do, self._sessions)
        return [
            web.get(f"{api}/healthz", self._healthz),
            web.get(f"{api}/get_server_capabilities", self._capabilities),
            *listings.routes(api),
            *(web.post(f"{api}/{path}", call) for path, call in posts.items()),
        ]

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get("X-API-Key", "").encode(), self._api_key):
            return _error(401, "The X-API-Key header does not hold this engine's key.")
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _error(error.status, f"{request.method} {request.path}: {error.reason}.")
        except MalformedRequest as error:
            return _error(400, str(error))
        except (UnknownModel, CheckpointMissing) as error:
            return _error(404, str(error))
        except UserError as error:
            return _error(400, str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return _error(500, "The engine failed on this request; its log has the details.")

    async def _do(self, work: Callable[[], Any]) -> Any:
        """Runs a short piece of work in the worker's thread."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def set_result(value: Any) -> None:
            self._loop.call_soon_threadsafe(_set_unless_done, future, value, None)

        def set_error(error: Exception) -> None:
            self._loop.call_soon_threadsafe(_set_unless_done, future, None, error)

        self._worker.submit(Job(work, set_result, set_error, quick=True))
        return await future

    def _later(
        self, key: Hashable | None, work: Callable[[], Any], write: Callable[[Any], Result]
    ) -> web.Response:
        """Promises the result of a job; a key seen before gets the promise it got then."""
        pending, is_new = self._futures.submit(key)
        if is_new:
            self._worker.submit(
                Job(
                    work,
                    lambda value: self._resolve(pending, lambda: write(value)),
                    lambda error: self._resolve(pending, lambda: _failure(error)),
                )
            )
        return web.json_response({"request_id": pending.request_id})

    def _resolve(self, pending: Pending, write: Callable[[], Result]) -> None:
        try:
            result = write()
        except Exception as error:
            result = _failure(error)
        self._loop.call_soon_threadsafe(self._futures.resolve, pending, result)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _client_config(self, _: web.Request) -> web.Response:
        # In turn rather than at once: gradients are then summed in the order of the data.
        return web.json_response({"parallel_fwdbwd_chunks": False, "sample_enable_stuck_detection": False})

    async def _client_dynamic_config(self, _: web.Request) -> web.Response:
        return web.json_response({"sample_cancel_enabled": True})

    async def _create_session(self, request: web.Request) -> web.Response:
        fields = await _fields(request)
        session_id = uuid.uuid4().hex
        self._sessions[session_id] = {
            "user_metadata": fields.raw("user_metadata"),
            "display_name": fields.raw("display_name"),
        }
        return web.json_response({"type": "create_session", "session_id": session_id})

    async def _session_heartbeat(self, request: web.Request) -> web.Response:
        session_id = (await _fields(request)).text("session_id")
        if session_id not in self._sessions:
            return _error(410, f"There is no session {session_id!r}.")
        return web.json_response({"type": "session_heartbeat"})

    async def _finish_session(self, request: web.Request) -> web.Response:
        session_id = request.match_info["session_id"]
        if self._sessions.pop(session_id, None) is not None:
            await self._do(lambda: self._engine.finish(session_id))
        return web.Response(status=204)

    async def _telemetry(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "accepted"})

    async def _capabilities(self, _: web.Request) -> web.Response:
        bases = [await self._do(partial(self._engine.base_model, name)) for name in self._models]
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

    async def _create_model(self, request: web.Request) -> web.Response:
        fields = await _fields(request)
        session_id = self._known_session(fields)
        base_model = fields.text("base_model")
        model_id = f"{session_id}:train:{fields.integer('model_seq_id')}"

        def work() -> None:
            spec, seed = read_lora(fields)
            self._engine.create_model(model_id, base_model, spec, seed)

        answer = {"type": "create_model", "model_id": model_id}
        return self._later(("create", model_id), work, lambda _: _json(answer))

    async def _unload_model(self, request: web.Request) -> web.Response:
        model_id = (await _fields(request)).text("model_id")
        answer = {"type": "unload_model", "model_id": model_id}
        return self._later(None, lambda: self._engine.trainers().pop(model_id, None), lambda _: _json(answer))

    async def _get_info(self, request: web.Request) -> web.Response:
        model_id = (await _fields(request)).text("model_id")
        trainer = await self._do(lambda: self._engine.trainer(model_id))
        base = trainer.base
        return web.json_response(
            {
                "type": "get_info",
                "model_id": model_id,
                "model_name": base.name,
                "model_data": {"arch": "llama", "model_name": base.name, "tokenizer_id": base.tokenizer_id},
                "is_lora": True,
                "lora_rank": trainer.spec.rank,
            }
        )

    async def _forward_backward(self, request: web.Request) -> web.Response:
        message = read_pass_request(await request.read())

        def write(result: PassResult) -> Result:
            return Result(write_pass_result(result), PROTOBUF)

        key = ("train", message.model_id, message.seq_id)
        return self._later(key, lambda: self._engine.run_pass(message), write)

    async def _optim_step(self, request: web.Request) -> web.Response:
        fields = await _fields(request)
        model_id = fields.text("model_id")
        return self._later(
            _train_key(fields),
            lambda: self._engine.optim_step(model_id, read_adam(fields)),
            lambda metrics: _json({"type": "optim_step", "metrics": metrics}),
        )

    async def _save_weights(self, request: web.Request) -> web.Response:
        fields = await _fields(request)
        return self._later(
            _train_key(fields),
            lambda: self._save(fields, "weights"),
            lambda path: _json({"type": "save_weights", "path": str(path)}),
        )

    async def _save_weights_for_sampler(self, request: web.Request) -> web.Response:
        fields = await _fields(request)
        model_id = fields.text("model_id")
        kind = {"type": "save_weights_for_sampler"}
        if fields.optional_text("path") is not None:
            return self._later(
                _train_key(fields),
                lambda: self._save(fields, "sampler_weights"),
                lambda path: _json(kind | {"path": str(path)}),
            )
        sequence = fields.integer("sampling_session_seq_id")
        session_id = f"{model_id.split(':')[0]}:sample:{sequence}"
        return self._later(
            _train_key(fields),
            lambda: self._engine.snapshot(model_id, session_id),
            lambda _: _json(kind | {"sampling_session_id": session_id}),
        )

    def _save(self, fields: Fields, kind: str) -> Any:
        metadata = fields.raw("user_metadata")
        return self._engine.save(
            fields.text("model_id"),
            kind,
            fields.text("path"),
            ttl_seconds=None if fields.raw("ttl_seconds") is None else fields.integer("ttl_seconds"),
            overwrite=fields.flag("overwrite"),
            user_metadata=metadata if isinstance(metadata, dict) else None,
        )

    async def _load_weights(self, request: web.Request) -> web.Response:
        fields = await _fields(request)
        model_id, path = fields.text("model_id"), fields.text("path")
        optimizer = fields.flag("optimizer")
        answer = {"type": "load_weights", "path": path, "model_id": model_id}
        return self._later(
            _train_key(fields),
            lambda: self._engine.load(model_id, path, optimizer=optimizer),
            lambda _: _json(answer),
        )

    async def _create_sampling_session(self, request: web.Request) -> web.Response:
        fields = await _fields(request)
        session_id = f"{self._known_session(fields)}:sample:{fields.integer('sampling_session_seq_id')}"
        base_model, model_path = fields.optional_text("base_model"), fields.optional_text("model_path")
        await self._do(lambda: self._engine.create_sampling_session(session_id, base_model, model_path))
        return web.json_response({"type": "create_sampling_session", "sampling_session_id": session_id})

    async def _asample(self, request: web.Request) -> web.Response:
        fields = await _fields(request)
        session_id = fields.text("sampling_session_id")
        count = fields.integer("num_samples", 1)
        if not 1 <= count <= MAX_SAMPLES:
            raise MalformedRequest(f"num_samples must be between 1 and {MAX_SAMPLES}, not {count}.")
        pending, is_new = self._futures.submit(("sample", session_id, fields.integer("seq_id")))
        if is_new:
            self._submit_sample(fields, session_id, count, pending)
        identities = [f"{pending.request_id}:{i}" for i in range(count)]
        return web.json_response({"request_id": pending.request_id, "sample_sequence_ids": identities})

    def _submit_sample(self, fields: Fields, session_id: str, count: int, pending: Pending) -> None:
        def fail(error: Exception) -> None:
            self._resolve(pending, lambda: _failure(error))

        def finish(answers: list[Answer], scores: np.ndarray | None) -> None:
            self._resolve(pending, lambda: Result(write_sample_result(answers, scores), PROTOBUF))

        try:
            refuse_unsupported(fields)
            scored = fields.flag("prompt_logprobs")
            last_n = None
            prompt = read_prompt(fields.raw("prompt") or {})
            if fields.raw("prompt_logprobs_last_n") is not None:
                last_n = fields.integer("prompt_logprobs_last_n")
                if not (scored and 1 <= last_n < len(prompt)):
                    raise UserError("prompt_logprobs_last_n must be between 1 and the prompt's length - 1.")
            job = SampleJob(
                session_id,
                prompt,
                read_sampling(fields),
                count,
                scored,
                last_n,
                lambda: not pending.cancelled,
            )
        except UserError as error:
            fail(error)
            return
        work = partial(self._engine.sample, job, finish, fail)
        self._worker.submit(Job(work, lambda _: None, fail, quick=True))

    async def _retrieve_future(self, request: web.Request) -> web.Response:
        request_id = (await _fields(request)).text("request_id")
        try:
            result = await self._futures.fetch(request_id, LONG_POLL_SECONDS)
        except KeyError:
            return _error(404, f"There is no request {request_id!r}, or its result was fetched long ago.")
        if result is None:
            body = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return web.json_response(body, status=408)
        return web.Response(body=result.body, content_type=result.content_type)

    async def _cancel_future(self, request: web.Request) -> web.Response:
        self._futures.cancel((await _fields(request)).text("request_id"))
        return web.Response(status=204)

    def _known_session(self, fields: Fields) -> str:
        session_id = fields.text("session_id")
        if session_id not in self._sessions:
            raise UnknownModel(f"There is no session {session_id!r}; create one first.")
        return session_id


def _set_unless_done(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _train_key(fields: Fields) -> Hashable | None:
    if fields.raw("seq_id") is None:
        return None
    return ("train", fields.text("model_id"), fields.integer("seq_id"))


async def _fields(request: web.Request) -> Fields:
    try:
        return Fields(json.loads(await request.read()))
    except ValueError as error:
        raise MalformedRequest(f"The body is not JSON: {error}.") from None


def _json(value: dict[str, Any]) -> Result:
    return Result(json.dumps(value).encode())


def _failure(error: Exception) -> Result:
    if isinstance(error, UserError | MalformedRequest):
        return _json({"error": str(error), "category": "user"})
    _log.error("A request failed", exc_info=error)
    return _json({"error": f"The engine failed: {type(error).__name__}: {error}", "category": "server"})


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
