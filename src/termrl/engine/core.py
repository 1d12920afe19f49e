"""What the engine holds: base models, training clients, sampling sessions, checkpoints; and what it does.

Every method here runs in the worker's thread. Training weights are never changed in place, so a sampling
session keeps the weights it was made from while training goes on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator
from pathlib import Path

import jax
import numpy as np

from termrl.engine.adam import AdamSettings
from termrl.engine.checkpoints import CheckpointInfo, CheckpointPath, CheckpointStore
from termrl.engine.journal import Journal
from termrl.engine.lora import LoraSpec
from termrl.engine.models import BaseModel, load_base_model
from termrl.engine.sampler import prepare
from termrl.engine.sampling import Sampling, UnknownModel
from termrl.engine.states import Saved, TrainingStates
from termrl.engine.trainer import PassResult, Trainer
from termrl.engine.wire import PassRequest
from termrl.engine.worker import Worker
from termrl.errors import UserError

MAX_RANK = 512

_log = logging.getLogger(__name__)


class ModelMismatch(UserError):
    """A checkpoint does not fit the training client it is to be loaded into."""


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
        self._dtype = dtype
        self._tensor_parallel = tensor_parallel
        self._models: dict[str, BaseModel] = {}
        self._trainers: dict[str, Trainer] = {}
        self._metadata: dict[str, dict[str, str]] = {}
        self.sampling = Sampling(worker, self.checkpoints, self.base_model, self._states, journal)

    def base_model(self, name: str) -> BaseModel:
        if name not in self._models:
            base = load_base_model(name, self._dtype, self._tensor_parallel)
            if base.mesh is None:
                prepare(base)
            self._models[name] = base
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
        data = request.decode_data(self.sampling.recorded)
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
        """A sampling session on the weights as they are now."""
        trainer = self.trainer(model_id)
        if self._states is not None:
            self._states.save_snapshot(session_id, trainer)
        self.sampling.hold_snapshot(session_id, trainer.base, trainer.lora, trainer.spec.alpha)

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

    def members(self, session_id: str) -> tuple[list[str], list[str]]:
        """The training clients and the sampling sessions a client session has made."""
        return (
            [name for name in self._trainers if name.startswith(f"{session_id}:")],
            self.sampling.made_by(session_id),
        )

    def finish(self, session_id: str) -> None:
        """Lets go of everything a client session made in memory; checkpoints stay."""
        trainers, samplers = self.members(session_id)
        for name in trainers:
            self.unload(name)
        for name in samplers:
            self.sampling.drop(name)

    @property
    def compiling(self) -> str | None:
        """A line about what is being compiled, if anything is."""
        for base in list(self._models.values()):
            if (status := base.programs.status) is not None:
                return status
        return None
