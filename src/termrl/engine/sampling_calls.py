"""The calls of a sampling client: a session on some weights, and requests to sample from them."""

from __future__ import annotations

import contextlib
from typing import Any

from aiohttp import web

from termrl.engine.core import Engine
from termrl.engine.fields import Fields, MalformedRequest
from termrl.engine.futures import Identity, Pending, Result
from termrl.engine.long_calls import LongCall, session_of
from termrl.engine.promises import Promises, read_fields
from termrl.engine.requests import MAX_SAMPLES, read_extras, read_sampling, refuse_unsupported
from termrl.engine.results import write_sample_result
from termrl.engine.sampled import Sampled
from termrl.engine.sampling import SampleJob
from termrl.engine.schema import PROTOBUF
from termrl.engine.session_calls import Sessions
from termrl.engine.wire import read_prompt
from termrl.errors import UserError


class SamplingCalls:
    def __init__(self, engine: Engine, promises: Promises, sessions: Sessions) -> None:
        self._engine = engine
        self._promises = promises
        self._sessions = sessions

    def routes(self, api: str) -> list[web.RouteDef]:
        return [web.post(f"{api}/create_sampling_session", self._create_session)]

    def long_calls(self) -> dict[str, LongCall]:
        return {"asample": LongCall(_identify, self._sample, answer=_name_samples)}

    async def _create_session(self, request: web.Request) -> web.Response:
        fields = read_fields(await request.read())
        owner = self._sessions.known(fields.text("session_id"))
        session_id = f"{owner}:sample:{fields.integer('sampling_session_seq_id')}"
        base_model, model_path = fields.optional_text("base_model"), fields.optional_text("model_path")
        await self._promises.do(lambda: self._engine.sampling.create(session_id, base_model, model_path))
        return web.json_response({"type": "create_sampling_session", "sampling_session_id": session_id})

    def _sample(self, body: bytes, pending: Pending) -> None:
        fields = read_fields(body)

        def finish(sampled: Sampled) -> None:
            self._promises.resolve(pending, lambda: Result(write_sample_result(sampled), PROTOBUF))

        def fail(error: Exception) -> None:
            self._promises.fail(pending, error)

        def work() -> None:
            self._engine.sampling.sample(_read_job(fields, pending), finish, fail)

        # Its answer comes through `finish`, when the sampler is done with it.
        self._promises.run(work, fail)


def _identify(body: bytes) -> Identity:
    fields = read_fields(body)
    session_id = fields.text("sampling_session_id")
    # What makes no sense is a 4xx now; what cannot be done is said when it is the request's turn.
    with contextlib.suppress(UserError):
        _read_job(fields, Pending("", Identity("", "")))
    return Identity(f"sample:{session_id}:{fields.integer('seq_id')}", session_of(session_id))


def _name_samples(body: bytes, pending: Pending) -> dict[str, Any]:
    count = _count(read_fields(body))
    return {"sample_sequence_ids": [f"{pending.request_id}:{i}" for i in range(count)]}


def _count(fields: Fields) -> int:
    count = fields.integer("num_samples", 1)
    if not 1 <= count <= MAX_SAMPLES:
        raise MalformedRequest(f"num_samples must be between 1 and {MAX_SAMPLES}, not {count}.")
    return count


def _read_job(fields: Fields, pending: Pending) -> SampleJob:
    refuse_unsupported(fields)
    prompt = read_prompt(fields.object("prompt").all())
    scored, last_n = fields.flag("prompt_logprobs"), None
    if fields.raw("prompt_logprobs_last_n") is not None:
        last_n = fields.integer("prompt_logprobs_last_n")
        if not (scored and 1 <= last_n < len(prompt)):
            raise UserError("prompt_logprobs_last_n must be between 1 and the prompt's length - 1.")
    return SampleJob(
        session_id=fields.text("sampling_session_id"),
        prompt=prompt,
        settings=read_sampling(fields),
        num_samples=_count(fields),
        prompt_logprobs=scored,
        last_n=last_n,
        extras=read_extras(fields, len(prompt)),
        is_wanted=lambda: not pending.cancelled,
        record_as=pending.request_id if fields.flag("record_stability_info") else None,
    )
