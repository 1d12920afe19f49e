"""The calls of a training client: made, trained, stepped, saved, loaded."""

from __future__ import annotations

import secrets
from typing import Any

from aiohttp import web

from termrl.engine.core import Engine
from termrl.engine.fields import Fields
from termrl.engine.futures import Identity, Pending, Result
from termrl.engine.long_calls import LongCall, session_of, training_identity
from termrl.engine.promises import Promises, json_result, read_fields
from termrl.engine.requests import read_adam, read_external, read_lora, read_ttl
from termrl.engine.results import write_pass_result
from termrl.engine.schema import PROTOBUF
from termrl.engine.session_calls import Sessions
from termrl.engine.trainer import PassResult
from termrl.engine.wire import read_pass_request
from termrl.errors import UserError


class TrainingCalls:
    def __init__(self, engine: Engine, promises: Promises, sessions: Sessions) -> None:
        self._engine = engine
        self._promises = promises
        self._sessions = sessions

    def routes(self, api: str) -> list[web.RouteDef]:
        return [web.post(f"{api}/get_info", self._get_info)]

    def long_calls(self) -> dict[str, LongCall]:
        def of_model(body: bytes) -> Identity | None:
            return training_identity(read_fields(body))

        return {
            "create_model": LongCall(self._identify_new, self._create_model, changes_model=True),
            "unload_model": LongCall(self._identify_unload, self._unload_model),
            "forward_backward": LongCall(_identify_pass, self._forward_backward, changes_model=True),
            "optim_step": LongCall(of_model, self._optim_step, changes_model=True),
            "save_weights": LongCall(of_model, self._save_weights),
            "save_weights_for_sampler": LongCall(of_model, self._save_for_sampler),
            "save_weights_external": LongCall(of_model, self._save_external),
            "load_weights": LongCall(self._identify_load, self._load_weights, changes_model=True),
        }

    def _identify_new(self, body: bytes) -> Identity:
        model_id = self._new_model_id(read_fields(body))
        return Identity(f"create:{model_id}", session_of(model_id), model_id)

    def _new_model_id(self, fields: Fields) -> str:
        session_id = self._sessions.known(fields.text("session_id"))
        return f"{session_id}:train:{fields.integer('model_seq_id')}"

    def _create_model(self, body: bytes, pending: Pending) -> None:
        fields = read_fields(body)
        model_id = self._new_model_id(fields)

        def work() -> None:
            # A random seed is drawn from the request's own id: the same if it has to be done again.
            spec, seed = read_lora(fields, fallback_seed=int(pending.request_id, 16) % 2**63)
            metadata = fields.raw("user_metadata")
            self._engine.create_model(
                model_id,
                fields.text("base_model"),
                spec,
                seed,
                metadata if isinstance(metadata, dict) else None,
            )

        answer = {"type": "create_model", "model_id": model_id}
        self._promises.keep(pending, work, lambda _: json_result(answer))

    def _identify_unload(self, body: bytes) -> Identity:
        model_id = read_fields(body).text("model_id")
        return Identity(f"unload:{model_id}:{secrets.token_hex(8)}", session_of(model_id), model_id)

    def _unload_model(self, body: bytes, pending: Pending) -> None:
        model_id = read_fields(body).text("model_id")
        answer = {"type": "unload_model", "model_id": model_id}
        self._promises.keep(pending, lambda: self._engine.unload(model_id), lambda _: json_result(answer))

    async def _get_info(self, request: web.Request) -> web.Response:
        model_id = read_fields(await request.read()).text("model_id")
        trainer = await self._promises.do(lambda: self._engine.trainer(model_id))
        base = trainer.base
        return web.json_response(
            {
                "type": "get_info",
                "model_id": model_id,
                "model_name": base.name,
                "model_data": {
                    "arch": base.config.architecture,
                    "model_name": base.name,
                    "tokenizer_id": base.tokenizer_id,
                },
                "is_lora": trainer.spec.is_lora,
                "lora_rank": trainer.spec.rank or None,
            }
        )

    def _forward_backward(self, body: bytes, pending: Pending) -> None:
        message = read_pass_request(body)
        if message.forward_only and pending.done.is_set():
            return

        def write(result: PassResult) -> Result:
            return Result(write_pass_result(result), PROTOBUF)

        self._promises.keep(pending, lambda: self._engine.run_pass(message), write)

    def _optim_step(self, body: bytes, pending: Pending) -> None:
        fields = read_fields(body)
        model_id = fields.text("model_id")
        self._promises.keep(
            pending,
            lambda: self._engine.optim_step(model_id, read_adam(fields), pending.n),
            lambda metrics: json_result({"type": "optim_step", "metrics": metrics}),
        )

    def _save_weights(self, body: bytes, pending: Pending) -> None:
        fields = read_fields(body)
        self._promises.keep(
            pending,
            lambda: self._save(fields, "weights", pending),
            lambda path: json_result({"type": "save_weights", "path": str(path)}),
        )

    def _save_external(self, body: bytes, pending: Pending) -> None:
        fields = read_fields(body)

        def work() -> Any:
            read_external(fields)
            return self._save(fields, "external_weights", pending)

        self._promises.keep(
            pending, work, lambda path: json_result({"type": "save_weights_external", "path": str(path)})
        )

    def _save_for_sampler(self, body: bytes, pending: Pending) -> None:
        fields = read_fields(body)
        model_id = fields.text("model_id")
        kind = {"type": "save_weights_for_sampler"}
        if fields.optional_text("path") is not None:
            self._promises.keep(
                pending,
                lambda: self._save(fields, "sampler_weights", pending),
                lambda path: json_result(kind | {"path": str(path)}),
            )
            return

        def snapshot() -> str:
            number = fields.integer("sampling_session_seq_id")
            session_id = f"{session_of(model_id)}:sample:{number}"
            self._engine.snapshot(model_id, session_id)
            return session_id

        self._promises.keep(
            pending, snapshot, lambda session_id: json_result(kind | {"sampling_session_id": session_id})
        )

    def _save(self, fields: Fields, kind: str, pending: Pending) -> Any:
        metadata = fields.raw("user_metadata")
        return self._engine.save(
            fields.text("model_id"),
            kind,
            fields.text("path"),
            ttl_seconds=read_ttl(fields),
            # Done again after a kill, it may meet its own half-told success.
            overwrite=fields.flag("overwrite") or pending.replayed,
            user_metadata=metadata if isinstance(metadata, dict) else None,
        )

    def _identify_load(self, body: bytes) -> Identity | None:
        fields = read_fields(body)
        return self._identify_new(body) if fields.raw("model_id") is None else training_identity(fields)

    def _load_weights(self, body: bytes, pending: Pending) -> None:
        """Into a training client, or into a new one shaped by the checkpoint."""
        fields = read_fields(body)
        path, optimizer = fields.text("path"), fields.flag("optimizer")
        is_new = fields.raw("model_id") is None
        model_id = self._new_model_id(fields) if is_new else fields.text("model_id")
        if fields.raw("weights_access_token") is not None:
            self._promises.fail(pending, UserError("This engine has one key and no access tokens."))
            return

        def work() -> None:
            if is_new:
                self._engine.create_from(model_id, path, fields.optional_text("base_model"))
            self._engine.load(model_id, path, pending.n, optimizer=optimizer)

        answer = {"type": "load_weights", "path": path, "model_id": model_id}
        self._promises.keep(pending, work, lambda _: json_result(answer))


def _identify_pass(body: bytes) -> Identity | None:
    message = read_pass_request(body)
    model_id = message.model_id
    return Identity(f"train:{model_id}:{message.seq_id}", session_of(model_id), model_id)
