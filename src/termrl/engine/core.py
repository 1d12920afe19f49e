"""What the engine holds: base models, training clients, sampling sessions, checkpoints; and what it does.

Every method here runs in the worker's thread. Training weights are never changed in place, so a sampling
session keeps the weights it was made from while training goes on.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import numpy as np

from termrl.engine.adam import AdamSettings
from termrl.engine.checkpoints import CheckpointInfo, CheckpointPath, CheckpointStore
from termrl.engine.journal import Journal
from termrl.engine.lora import DEFAULT_ALPHA, Lora, LoraSpec
from termrl.engine.models import BaseModel, load_base_model
from termrl.engine.sampled import Sampled, with_first_empty
from termrl.engine.sampler import Sampler
from termrl.engine.scoring import Extras, score
from termrl.engine.sequences import Answer, SamplingSettings
from termrl.engine.states import Saved, TrainingStates
from termrl.engine.trainer import PassResult, Trainer, merged
from termrl.engine.wire import PassRequest, PromptError
from termrl.engine.worker import Worker
from termrl.errors import UserError

EPHEMERAL_SNAPSHOTS = 16
MAX_RANK = 512
RECORDED_SEQUENCES = 1 << 16

_log = logging.getLogger(__name__)


class UnknownModel(UserError):
    """A request names a training client or sampling session this engine does not have."""


class ModelMismatch(UserError):
    """A checkpoint does not fit the training client it is to be loaded into."""


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


class Engine:
    def __init__(
        self,
        state_dir: Path,
        worker: Worker,
        journal: Journal | None = None,
        dtype: str = "float32",
        tensor_parallel: int = 1,
    ) -> None:
        self.checkpoints = CheckpointStore(state_dir / "checkpoints")
        self._states = TrainingStates(state_dir / "models", journal) if journal is not None else None
        self._journal = journal
        self._worker = worker
        self._dtype = dtype
        self._tensor_parallel = tensor_parallel
        self._models: dict[str, BaseModel] = {}
        self._trainers: dict[str, Trainer] = {}
        self._metadata: dict[str, dict[str, str]] = {}
        self._sessions: dict[str, SamplingSession] = {}
        self._ephemeral: OrderedDict[str, None] = OrderedDict()
        self._recorded: OrderedDict[str, np.ndarray] = OrderedDict()

    def base_model(self, name: str) -> BaseModel:
        if name not in self._models:
            self._models[name] = load_base_model(name, self._dtype, self._tensor_parallel)
        return self._models[name]

    def trainer(self, model_id: str) -> Trainer:
        if model_id not in self._trainers:
            raise UnknownModel(
                f"There is no training client {model_id!r}; after an engine restart, create one from a state."
            )
        return self._trainers[model_id]

    def trainers(self) -> dict[str, Trainer]:
        return self._trainers

    def user_metadata(self, model_id: str) -> dict[str, str] | None:
        return self._metadata.get(model_id)

    def session(self, session_id: str) -> SamplingSession:
        if session_id not in self._sessions:
            raise UnknownModel(
                f"There is no sampling session {session_id!r}; the engine keeps the last "
                f"{EPHEMERAL_SNAPSHOTS} unnamed ones. Save named weights to keep them."
            )
        return self._sessions[session_id]

    def create_model(
        self,
        model_id: str,
        base_model: str,
        spec: LoraSpec,
        seed: int,
        metadata: dict[str, str] | None = None,
    ) -> None:
        if not 0 <= spec.rank <= MAX_RANK:
            raise UserError(
                f"The LoRA rank must be between 1 and {MAX_RANK}, or 0 to train every weight, "
                f"not {spec.rank}."
            )
        self._trainers[model_id] = Trainer(self.base_model(base_model), spec, seed)
        if metadata:
            self._metadata[model_id] = {str(key): str(value) for key, value in metadata.items()}

    def create_from(self, model_id: str, text: str, base_model: str | None) -> None:
        """A training client of the shape that a checkpoint has."""
        info = self.checkpoints.info(CheckpointPath.parse(text))
        self.create_model(model_id, base_model or info.base_model, info.spec, 0)

    def unload(self, model_id: str) -> None:
        self._trainers.pop(model_id, None)
        self._metadata.pop(model_id, None)
        if self._states is not None:
            self._states.drop(model_id)

    def run_pass(self, request: PassRequest) -> Generator[None, None, PassResult]:
        trainer = self.trainer(request.model_id)
        data = request.decode_data(self._recorded)
        return trainer.run(data, request.loss_fn, request.settings, backward=not request.forward_only)

    def optim_step(self, model_id: str, settings: AdamSettings, n: int = 0) -> dict[str, float]:
        trainer = self.trainer(model_id)
        metrics = {"unclipped_grad_l2:mean": trainer.optim_step(settings)}
        if self._states is not None:
            result = json.dumps({"type": "optim_step", "metrics": metrics})
            self._states.save_in_time(model_id, trainer, n, result)
        return metrics

    def save(
        self,
        model_id: str,
        kind: str,
        name: str,
        *,
        ttl_seconds: int | None,
        overwrite: bool,
        user_metadata: dict[str, str] | None,
    ) -> CheckpointPath:
        trainer = self.trainer(model_id)
        now = time.time()
        info = CheckpointInfo(
            base_model=trainer.base.name,
            spec=trainer.spec,
            created=now,
            expires=None if ttl_seconds is None else now + ttl_seconds,
            user_metadata=user_metadata,
        )
        path = CheckpointPath(model_id, kind, name)
        adam = trainer.adam if kind == "weights" else None
        self.checkpoints.save(path, info, trainer.lora, adam, overwrite=overwrite)
        return path

    def load(self, model_id: str, text: str, n: int = 0, *, optimizer: bool) -> None:
        trainer = self.trainer(model_id)
        path = CheckpointPath.parse(text)
        info, lora, adam = self.checkpoints.load(path)
        if info.spec != trainer.spec:
            raise ModelMismatch(f"{path} has {info.spec}, the training client {trainer.spec}.")
        if jax.tree.map(np.shape, lora) != jax.tree.map(np.shape, trainer.lora):
            raise ModelMismatch(f"{path} was trained on {info.base_model}, which has another shape.")
        if optimizer and adam is None:
            raise ModelMismatch(f"{path} holds no optimizer state; load it without, or save with save_state.")
        trainer.load(lora, adam if optimizer else None)
        if self._states is not None:
            # At once: the checkpoint may be gone when it would have to be loaded again.
            result = json.dumps({"type": "load_weights", "path": text, "model_id": model_id})
            self._states.save(model_id, trainer, n, result)

    def snapshot(self, model_id: str, session_id: str) -> None:
        """A sampling session on the weights as they are now; the last few of a kind are kept."""
        trainer = self.trainer(model_id)
        session = SamplingSession(trainer.base, session_id, trainer.lora, trainer.spec.alpha)
        if self._states is not None:
            self._states.save_snapshot(session_id, trainer)
        self._hold_snapshot(session_id, session)

    def _hold_snapshot(self, session_id: str, session: SamplingSession) -> None:
        self._sessions[session_id] = session
        self._ephemeral[session_id] = None
        while len(self._ephemeral) > EPHEMERAL_SNAPSHOTS:
            oldest, _ = self._ephemeral.popitem(last=False)
            del self._sessions[oldest]
            if self._states is not None:
                self._states.drop_snapshot(oldest)

    def create_sampling_session(
        self, session_id: str, base_model: str | None, model_path: str | None
    ) -> None:
        if model_path is None:
            if base_model is None:
                raise UserError("A sampling session needs a base_model or a model_path.")
            base = self.base_model(base_model)
            self._sessions[session_id] = SamplingSession(base, base.name)
        else:
            path = CheckpointPath.parse(model_path)
            info = self.checkpoints.info(path)
            self._sessions[session_id] = SamplingSession(
                self.base_model(base_model or info.base_model),
                f"{path}@{info.created}",
                alpha=info.spec.alpha,
                path=path,
                created=info.created,
            )
        if self._journal is not None:
            record = {"base_model": base_model, "model_path": model_path}
            self._journal.put_sampler(session_id, record)

    def restore_trainers(self) -> dict[str, Saved]:
        """After a kill: brings back the training clients that have a state on disk."""
        if self._states is None:
            return {}
        found = {}
        for model_id, info, lora, adam, saved in self._states.load_all():
            trainer = Trainer(self.base_model(info.base_model), info.spec, 0)
            trainer.load(lora, adam)
            self._trainers[model_id] = trainer
            found[model_id] = saved
        return found

    def restore_samplers(self) -> None:
        """After a kill: brings back the sampling sessions; one whose weights are gone stays gone."""
        if self._states is None or self._journal is None:
            return
        for session_id, record in self._journal.samplers().items():
            try:
                if record.get("snapshot"):
                    info, lora = self._states.load_snapshot(session_id)
                    base = self.base_model(info.base_model)
                    self._hold_snapshot(session_id, SamplingSession(base, session_id, lora, info.spec.alpha))
                else:
                    self.create_sampling_session(session_id, record["base_model"], record["model_path"])
            except UserError as error:
                _log.warning("The sampling session %s could not be brought back: %s", session_id, error)
                self._journal.drop_sampler(session_id)

    def members(self, session_id: str) -> tuple[list[str], list[str]]:
        """The training clients and the sampling sessions a client session has made."""
        prefix = f"{session_id}:"
        return (
            [name for name in self._trainers if name.startswith(prefix)],
            [name for name in self._sessions if name.startswith(prefix)],
        )

    def finish(self, session_id: str) -> None:
        """Lets go of everything a client session made in memory; checkpoints stay."""
        for name in [name for name in self._trainers if name.startswith(f"{session_id}:")]:
            self.unload(name)
        for name in [name for name in self._sessions if name.startswith(f"{session_id}:")]:
            del self._sessions[name]
            if self._ephemeral.pop(name, self) is None and self._states is not None:
                self._states.drop_snapshot(name)

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
            self._recorded[f"{job.record_as}:{index}"] = np.asarray(answer.logprobs, np.float32)
        while len(self._recorded) > RECORDED_SEQUENCES:
            self._recorded.popitem(last=False)

    def _make_sampler(self, session: SamplingSession) -> Sampler:
        lora = session.lora
        if session.path is not None:
            info, lora, _ = self.checkpoints.load(session.path)
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
