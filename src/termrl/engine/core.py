"""What the engine holds: base models, training clients, sampling sessions, checkpoints; and what it does.

Every method here runs in the worker's thread. Training weights are never changed in place, so a sampling
session keeps the weights it was made from while training goes on.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from termrl.engine.adam import AdamSettings
from termrl.engine.checkpoints import CheckpointInfo, CheckpointPath, CheckpointStore
from termrl.engine.lora import Lora, LoraSpec
from termrl.engine.models import BaseModel, load_base_model
from termrl.engine.sampler import Answer, Sampler, SamplingSettings
from termrl.engine.trainer import PassResult, Trainer, merged
from termrl.engine.wire import PassRequest, PromptError
from termrl.engine.worker import Worker
from termrl.errors import UserError

EPHEMERAL_SNAPSHOTS = 16
MAX_RANK = 512


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
    is_wanted: Callable[[], bool]


class Engine:
    def __init__(self, state_dir: Path, worker: Worker) -> None:
        self.checkpoints = CheckpointStore(state_dir / "checkpoints")
        self._worker = worker
        self._models: dict[str, BaseModel] = {}
        self._trainers: dict[str, Trainer] = {}
        self._sessions: dict[str, SamplingSession] = {}
        self._ephemeral: OrderedDict[str, None] = OrderedDict()

    def base_model(self, name: str) -> BaseModel:
        if name not in self._models:
            self._models[name] = load_base_model(name)
        return self._models[name]

    def trainer(self, model_id: str) -> Trainer:
        if model_id not in self._trainers:
            raise UnknownModel(
                f"There is no training client {model_id!r}; after an engine restart, create one from a state."
            )
        return self._trainers[model_id]

    def trainers(self) -> dict[str, Trainer]:
        return self._trainers

    def session(self, session_id: str) -> SamplingSession:
        if session_id not in self._sessions:
            raise UnknownModel(
                f"There is no sampling session {session_id!r}; the engine keeps the last "
                f"{EPHEMERAL_SNAPSHOTS} unnamed ones until it restarts. Save named weights to keep them."
            )
        return self._sessions[session_id]

    def create_model(self, model_id: str, base_model: str, spec: LoraSpec, seed: int) -> None:
        if not 1 <= spec.rank <= MAX_RANK:
            raise UserError(f"The LoRA rank must be between 1 and {MAX_RANK}, not {spec.rank}.")
        self._trainers[model_id] = Trainer(self.base_model(base_model), spec, seed)

    def run_pass(self, request: PassRequest) -> Generator[None, None, PassResult]:
        trainer = self.trainer(request.model_id)
        return trainer.run(
            request.decode_data(), request.loss_fn, request.settings, backward=not request.forward_only
        )

    def optim_step(self, model_id: str, settings: AdamSettings) -> dict[str, float]:
        return {"unclipped_grad_l2:mean": self.trainer(model_id).optim_step(settings)}

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

    def load(self, model_id: str, text: str, *, optimizer: bool) -> None:
        trainer = self.trainer(model_id)
        path = CheckpointPath.parse(text)
        info, lora, adam = self.checkpoints.load(path)
        if info.spec != trainer.spec:
            raise ModelMismatch(f"{path} has {info.spec}, the training client {trainer.spec}.")
        shapes = {name: pair["a"].shape[:-1] + pair["b"].shape[-1:] for name, pair in lora.items()}
        if shapes != {n: p["a"].shape[:-1] + p["b"].shape[-1:] for n, p in trainer.lora.items()}:
            raise ModelMismatch(f"{path} was trained on {info.base_model}, which has another shape.")
        if optimizer and adam is None:
            raise ModelMismatch(f"{path} holds no optimizer state; load it without, or save with save_state.")
        trainer.load(lora, adam if optimizer else None)

    def snapshot(self, model_id: str, session_id: str) -> None:
        """A sampling session on the weights as they are now, kept in memory only."""
        trainer = self.trainer(model_id)
        self._sessions[session_id] = SamplingSession(trainer.base, session_id, trainer.lora)
        self._ephemeral[session_id] = None
        while len(self._ephemeral) > EPHEMERAL_SNAPSHOTS:
            oldest, _ = self._ephemeral.popitem(last=False)
            del self._sessions[oldest]

    def create_sampling_session(
        self, session_id: str, base_model: str | None, model_path: str | None
    ) -> None:
        if model_path is None:
            if base_model is None:
                raise UserError("A sampling session needs a base_model or a model_path.")
            base = self.base_model(base_model)
            self._sessions[session_id] = SamplingSession(base, base.name)
            return
        path = CheckpointPath.parse(model_path)
        info = self.checkpoints.info(path)
        base = self.base_model(base_model or info.base_model)
        snapshot = f"{path}@{info.created}"
        self._sessions[session_id] = SamplingSession(base, snapshot, path=path, created=info.created)

    def members(self, session_id: str) -> tuple[list[str], list[str]]:
        """The training clients and the sampling sessions a client session has made."""
        prefix = f"{session_id}:"
        return (
            [name for name in self._trainers if name.startswith(prefix)],
            [name for name in self._sessions if name.startswith(prefix)],
        )

    def finish(self, session_id: str) -> None:
        """Lets go of everything a client session made in memory; checkpoints stay."""
        for held in (self._trainers, self._sessions, self._ephemeral):
            for name in [name for name in held if name.startswith(f"{session_id}:")]:
                del held[name]

    def sample(
        self,
        job: SampleJob,
        on_done: Callable[[list[Answer], np.ndarray | None], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        session = self.session(job.session_id)
        config = session.base.config
        room = config.max_position_embeddings - len(job.prompt)
        if len(job.prompt) == 0:
            raise PromptError("The prompt is empty; it needs at least one token.")
        if job.prompt.max() >= config.vocab_size:
            raise PromptError(f"The prompt has token ids outside the vocabulary of {config.vocab_size}.")
        if room < 0 or (room == 0 and not job.prompt_logprobs):
            raise PromptError(
                f"The prompt has {len(job.prompt)} tokens; {session.base.name} has a context of "
                f"{config.max_position_embeddings}."
            )
        answers: list[Answer | None] = [None] * job.num_samples
        scores: list[np.ndarray] = []

        def finish_if_whole() -> None:
            whole = [answer for answer in answers if answer is not None]
            if len(whole) == job.num_samples and (scores or not job.prompt_logprobs):
                on_done(whole, scores[0] if scores else None)

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
        settings = _with_room(job.settings, max(room, 1), config.eos_token_ids)
        if job.prompt_logprobs:
            sampler.score(job.prompt, take_scores)
        for index in range(job.num_samples):
            sampler.sample(job.prompt, settings, index, partial(take_answer, index), job.is_wanted)

    def _make_sampler(self, session: SamplingSession) -> Sampler:
        lora = session.lora
        if session.path is not None:
            info, lora, _ = self.checkpoints.load(session.path)
            if info.created != session.created:
                raise UnknownModel(f"{session.path} was overwritten; create a new sampling client from it.")
        params = session.base.params
        return Sampler(session.base, params if lora is None else merged(params, lora))


def _with_room(settings: SamplingSettings, room: int, eos_ids: tuple[int, ...]) -> SamplingSettings:
    stops = settings.stop_ids
    if settings.stops_at_eos:
        stops = tuple(dict.fromkeys((*stops, *eos_ids)))
    return replace(settings, max_tokens=min(settings.max_tokens, room), stop_ids=stops)
