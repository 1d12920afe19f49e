"""Weights to sample from, and requests to sample from them.

A sampling session is a base model, an adapter held in memory, or one on disk. Every method runs in the
worker's thread. The last few unnamed sessions are kept, and the logprobs of the last recorded answers.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from termrl.engine.checkpoints import CheckpointPath, CheckpointStore
from termrl.engine.journal import Journal
from termrl.engine.lora import DEFAULT_ALPHA, Lora
from termrl.engine.models import BaseModel
from termrl.engine.passes import merged
from termrl.engine.sampled import Sampled, with_first_empty
from termrl.engine.sampler import Sampler
from termrl.engine.scoring import Extras, score
from termrl.engine.sequences import Answer, SamplingSettings
from termrl.engine.states import TrainingStates
from termrl.engine.wire import PromptError
from termrl.engine.worker import Worker
from termrl.errors import UserError

EPHEMERAL_SNAPSHOTS = 16
RECORDED_SEQUENCES = 1 << 16

_log = logging.getLogger(__name__)


class UnknownModel(UserError):
    """A request names a training client or sampling session this engine does not have."""


@dataclass(frozen=True)
class SamplingSession:
    """Weights to sample from: an adapter held in memory, one on disk, or none.

    `snapshot` tells weights apart: sessions on the same weights share a sampler and its prefixes.
    """

    base: BaseModel
    snapshot: str
    lora: Lora | None = None
    alpha: float = DEFAULT_ALPHA
    path: CheckpointPath | None = None
    created: float = 0.0


@dataclass(frozen=True)
class SampleJob:
    session_id: str
    prompt: np.ndarray
    settings: SamplingSettings
    num_samples: int
    prompt_logprobs: bool
    last_n: int | None
    extras: Extras
    is_wanted: Callable[[], bool]
    record_as: str | None = None
    """The id under which a training request may refer to the answers' logprobs."""


class Sampling:
    def __init__(
        self,
        worker: Worker,
        checkpoints: CheckpointStore,
        base_model: Callable[[str], BaseModel],
        states: TrainingStates | None,
        journal: Journal | None,
    ) -> None:
        self._worker = worker
        self._checkpoints = checkpoints
        self._base_model = base_model
        self._states = states
        self._journal = journal
        self._sessions: dict[str, SamplingSession] = {}
        self._ephemeral: OrderedDict[str, None] = OrderedDict()
        self.recorded: OrderedDict[str, np.ndarray] = OrderedDict()

    def session(self, session_id: str) -> SamplingSession:
        if session_id not in self._sessions:
            raise UnknownModel(
                f"There is no sampling session {session_id!r}; the engine keeps the last "
                f"{EPHEMERAL_SNAPSHOTS} unnamed ones. Save named weights to keep them."
            )
        return self._sessions[session_id]

    def hold_snapshot(self, session_id: str, base: BaseModel, lora: Lora, alpha: float) -> None:
        """A session on trained weights that are on no checkpoint; the last few of a kind are kept."""
        self._sessions[session_id] = SamplingSession(base, session_id, lora, alpha)
        self._ephemeral[session_id] = None
        while len(self._ephemeral) > EPHEMERAL_SNAPSHOTS:
            oldest, _ = self._ephemeral.popitem(last=False)
            del self._sessions[oldest]
            if self._states is not None:
                self._states.drop_snapshot(oldest)

    def made_by(self, client_session: str) -> list[str]:
        return [name for name in self._sessions if name.startswith(f"{client_session}:")]

    def drop(self, session_id: str) -> None:
        del self._sessions[session_id]
        if self._ephemeral.pop(session_id, self) is None and self._states is not None:
            self._states.drop_snapshot(session_id)

    def create(self, session_id: str, base_model: str | None, model_path: str | None) -> None:
        if model_path is None:
            if base_model is None:
                raise UserError("A sampling session needs a base_model or a model_path.")
            base = self._base_model(base_model)
            self._sessions[session_id] = SamplingSession(base, base.name)
        else:
            path = CheckpointPath.parse(model_path)
            info = self._checkpoints.info(path)
            self._sessions[session_id] = SamplingSession(
                self._base_model(base_model or info.base_model),
                f"{path}@{info.created}",
                alpha=info.spec.alpha,
                path=path,
                created=info.created,
            )
        if self._journal is not None:
            record = {"base_model": base_model, "model_path": model_path}
            self._journal.put_sampler(session_id, record)

    def restore(self) -> None:
        """After a kill: brings back the sampling sessions; one whose weights are gone stays gone."""
        if self._states is None or self._journal is None:
            return
        for session_id, record in self._journal.samplers().items():
            try:
                if record.get("snapshot"):
                    info, lora = self._states.load_snapshot(session_id)
                    base = self._base_model(info.base_model)
                    self.hold_snapshot(session_id, base, lora, info.spec.alpha)
                else:
                    self.create(session_id, record["base_model"], record["model_path"])
            except UserError as error:
                _log.warning("The sampling session %s could not be brought back: %s", session_id, error)
                self._journal.drop_sampler(session_id)

    def sample(
        self, job: SampleJob, on_done: Callable[[Sampled], None], on_error: Callable[[Exception], None]
    ) -> None:
        session = self.session(job.session_id)
        room = _check_prompt(job, session.base)
        answers: list[Answer | None] = [None] * job.num_samples
        scores: list[np.ndarray] = []

        def finish_if_whole() -> None:
            whole = [answer for answer in answers if answer is not None]
            if len(whole) == job.num_samples and (scores or not job.prompt_logprobs):
                try:
                    sampled = self._with_extras(session, job, whole, scores[0] if scores else None)
                except Exception as error:
                    on_error(error)
                else:
                    self._record(job, whole)
                    on_done(sampled)

        def take_answer(index: int, answer: Answer) -> None:
            answers[index] = answer
            finish_if_whole()

        def take_scores(found: np.ndarray) -> None:
            if job.last_n is not None:
                found[: -job.last_n] = np.nan
            scores.append(found)
            finish_if_whole()

        sampler = self._worker.sampler(session.snapshot, lambda: self._make_sampler(session))
        self._worker.watch(session.snapshot, on_error)
        settings = _with_room(job.settings, max(room, 1), session.base.config.eos_token_ids)
        if job.prompt_logprobs:
            sampler.score(job.prompt, take_scores)
        for index in range(job.num_samples):
            sampler.sample(job.prompt, settings, index, partial(take_answer, index), job.is_wanted)

    def _with_extras(
        self, session: SamplingSession, job: SampleJob, answers: list[Answer], scores: np.ndarray | None
    ) -> Sampled:
        sampled = Sampled(answers, scores, cached_tokens=min(answer.cached_tokens for answer in answers))
        extras, config = job.extras, session.base.config
        if not (extras.about_prompt or extras.topk_sample):
            return sampled
        params = self._worker.sampler(session.snapshot, lambda: self._make_sampler(session)).params
        if extras.about_prompt:
            found = score(
                params,
                config,
                job.prompt,
                top=extras.topk_prompt,
                targets=extras.targets,
                draws=extras.draws,
                temperature=job.settings.temperature,
                seed=job.settings.seed,
            )
            skip = 0 if job.last_n is None else len(job.prompt) - job.last_n
            sampled = replace(
                sampled,
                topk_prompt=with_first_empty(found.top_ids, found.top_logprobs, skip)
                if extras.topk_prompt
                else None,
                targets=None if extras.targets is None else found.target_logprobs,
                sparse=extras.sparse,
                drawn=(found.drawn_ids, found.drawn_logprobs) if extras.draws else None,
            )
        if extras.topk_sample:
            tops = []
            for answer in answers:
                whole = np.concatenate([job.prompt, np.asarray(answer.tokens, np.int32)])
                found = score(params, config, whole, top=extras.topk_sample)
                first = len(job.prompt) - 1
                tops.append((found.top_ids[first:], found.top_logprobs[first:]))
            sampled = replace(sampled, topk_samples=tops)
        return sampled

    def _record(self, job: SampleJob, answers: list[Answer]) -> None:
        if job.record_as is None:
            return
        for index, answer in enumerate(answers):
            self.recorded[f"{job.record_as}:{index}"] = np.asarray(answer.logprobs, np.float32)
        while len(self.recorded) > RECORDED_SEQUENCES:
            self.recorded.popitem(last=False)

    def _make_sampler(self, session: SamplingSession) -> Sampler:
        lora = session.lora
        if session.path is not None:
            info, lora, _ = self._checkpoints.load(session.path)
            if info.created != session.created:
                raise UnknownModel(f"{session.path} was overwritten; create a new sampling client from it.")
        params = session.base.params
        return Sampler(session.base, params if lora is None else merged(params, lora, session.alpha))


def _check_prompt(job: SampleJob, base: BaseModel) -> int:
    """The room that the prompt leaves in the context."""
    config = base.config
    room = config.max_position_embeddings - len(job.prompt)
    if len(job.prompt) == 0:
        raise PromptError("The prompt is empty; it needs at least one token.")
    if job.prompt.max() >= config.vocab_size:
        raise PromptError(f"The prompt has token ids outside the vocabulary of {config.vocab_size}.")
    if job.extras.targets is not None and job.extras.targets.max(initial=-1) >= config.vocab_size:
        raise PromptError(f"target_prompt_logprobs has ids outside the vocabulary of {config.vocab_size}.")
    if job.extras.about_prompt and len(job.prompt) < 2:
        raise PromptError("What is asked about the prompt needs a prompt of two tokens or more.")
    if room < 0 or (room == 0 and not job.prompt_logprobs):
        raise PromptError(
            f"The prompt has {len(job.prompt)} tokens; {base.name} has a context of "
            f"{config.max_position_embeddings}."
        )
    return room


def _with_room(settings: SamplingSettings, room: int, eos_ids: tuple[int, ...]) -> SamplingSettings:
    stops = settings.stop_ids
    if settings.stops_at_eos:
        stops = tuple(dict.fromkeys((*stops, *eos_ids)))
    return replace(settings, max_tokens=min(settings.max_tokens, room), stop_ids=stops)
