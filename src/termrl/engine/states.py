"""The running state of training clients and of unnamed snapshots, on disk beside the journal.

A client's weights and optimizer are saved after steps, with the number of the last request they hold; what
came after is done again from the journal, to the same bits. Saving costs at most a small share of the time:
where a state is big and steps are short, it is saved every few steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from termrl.engine.adam import AdamState
from termrl.engine.checkpoints import CheckpointError, CheckpointInfo, CheckpointPath, CheckpointStore
from termrl.engine.journal import Journal
from termrl.engine.lora import Lora
from termrl.engine.trainer import Trainer

SAVING_SHARE = 0.1

_NOW = "now"


class Saved(NamedTuple):
    """The last request that a state holds, and its result."""

    n: int
    result: str


class TrainingStates:
    def __init__(self, directory: Path, journal: Journal) -> None:
        self._store = CheckpointStore(directory)
        self._journal = journal
        self._due: dict[str, float] = {}

    def save_in_time(self, model_id: str, trainer: Trainer, n: int, result: str) -> None:
        """Saves, unless the last save of this client was so long that the next is not due yet."""
        if time.monotonic() >= self._due.get(model_id, 0.0):
            self.save(model_id, trainer, n, result)

    def save(self, model_id: str, trainer: Trainer, n: int, result: str) -> None:
        """With the last request's result, which may not be in the journal yet.

        Call it when no gradients are held: they are not saved.
        """
        begin = time.monotonic()
        info = _info(trainer, n, result)
        self._store.save(_state(model_id), info, trainer.lora, trainer.adam, overwrite=True, synced=False)
        end = time.monotonic()
        self._due[model_id] = end + (end - begin) / SAVING_SHARE
        self._journal.forget_bodies(model_id, n - 1)

    def load_all(self) -> Iterator[tuple[str, CheckpointInfo, Lora, AdamState | None, Saved]]:
        """Every saved client, and up to which request."""
        for path, _ in self._store.list():
            if path.kind == "weights":
                info, lora, adam = self._store.load(path)
                notes = info.user_metadata or {}
                yield path.run, info, lora, adam, Saved(int(notes["n"]), notes["result"])

    def drop(self, model_id: str) -> None:
        self._due.pop(model_id, None)
        self._store.drop_run(model_id)

    def save_snapshot(self, session_id: str, trainer: Trainer) -> None:
        path = _snapshot(session_id)
        self._store.save(path, _info(trainer, 0, ""), trainer.lora, None, overwrite=True, synced=False)
        self._journal.put_sampler(session_id, {"snapshot": True})

    def load_snapshot(self, session_id: str) -> tuple[CheckpointInfo, Lora]:
        info, lora, _ = self._store.load(_snapshot(session_id))
        return info, lora

    def drop_snapshot(self, session_id: str) -> None:
        self._journal.drop_sampler(session_id)
        try:
            self._store.delete(_snapshot(session_id))
        except CheckpointError:
            return


def _info(trainer: Trainer, n: int, result: str) -> CheckpointInfo:
    notes = {"n": str(n), "result": result}
    return CheckpointInfo(trainer.base.name, trainer.spec, time.time(), user_metadata=notes)


def _state(model_id: str) -> CheckpointPath:
    return CheckpointPath(model_id, "weights", _NOW)


def _snapshot(session_id: str) -> CheckpointPath:
    return CheckpointPath(session_id, "sampler_weights", _NOW)
