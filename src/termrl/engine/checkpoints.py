"""Checkpoints on disk, one safetensors file each, under `tinker://RUN/KIND/NAME`.

Kinds are weights, sampler_weights and external_weights. A file holds what was trained, for training states
the optimizer too, and in its header what is needed to use it. It is written beside its place, synced and
renamed: there is never half a checkpoint under a name, and what a caller was told is saved survives the
machine going down. Expired checkpoints are removed when met.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from termrl.engine.adam import AdamState
from termrl.engine.lora import Lora, LoraSpec
from termrl.errors import UserError

KINDS = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")


class CheckpointError(UserError):
    """A checkpoint cannot be written or read as asked."""


class CheckpointMissing(CheckpointError):
    """No checkpoint has this path."""


@dataclass(frozen=True)
class CheckpointPath:
    run: str
    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> CheckpointPath:
        parts = text.removeprefix("tinker://").split("/")
        if not text.startswith("tinker://") or len(parts) != 3:
            raise CheckpointError(f"{text!r} is not a checkpoint path like tinker://RUN/weights/NAME.")
        path = cls(*parts)
        path.check()
        return path

    def check(self) -> None:
        if self.kind not in KINDS:
            raise CheckpointError(f"A checkpoint is of kind {' or '.join(KINDS)}, not {self.kind!r}.")
        for part in (self.run, self.name):
            if not _NAME.fullmatch(part):
                raise CheckpointError(
                    f"{part!r} cannot name a checkpoint; use letters, digits, '.', '_', '-' and ':'."
                )

    def __str__(self) -> str:
        return f"tinker://{self.run}/{self.kind}/{self.name}"


@dataclass(frozen=True)
class CheckpointInfo:
    """What the header of a checkpoint says."""

    base_model: str
    spec: LoraSpec
    created: float
    expires: float | None = None
    user_metadata: Mapping[str, str] | None = None
    has_optimizer: bool = False
    size: int = field(default=0, compare=False)


class CheckpointStore:
    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob("*/*/.*.tmp"):
            leftover.unlink()

    def save(
        self,
        path: CheckpointPath,
        info: CheckpointInfo,
        lora: Lora,
        adam: AdamState | None,
        *,
        overwrite: bool = False,
        synced: bool = True,
    ) -> None:
        """Without `synced` it survives the process but perhaps not the machine."""
        path.check()
        place = self._file(path)
        if not overwrite and self.find(path) is not None:
            raise CheckpointError(f"{path} exists already; choose another name or save with overwrite.")
        tensors = {f"lora.{key}": value for key, value in _flatten(lora).items()}
        if adam is not None:
            tensors |= {f"mean.{key}": value for key, value in _flatten(adam.mean).items()}
            tensors |= {f"square.{key}": value for key, value in _flatten(adam.square).items()}
            tensors["step"] = np.asarray(adam.step)
        header = asdict(info) | {"has_optimizer": adam is not None}
        del header["size"]
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}.tmp")
        try:
            save_file(tensors, beside, metadata={"checkpoint": json.dumps(header)})
            if synced:
                with open(beside, "rb") as file:
                    os.fsync(file.fileno())
            os.replace(beside, place)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise CheckpointError(f"{path} could not be written: {error.strerror or error}.") from error
        if synced:
            for directory in (place.parent, place.parent.parent, self._root):
                _sync_directory(directory)

    def find(self, path: CheckpointPath) -> CheckpointInfo | None:
        place = self._file(path)
        if not place.exists():
            return None
        try:
            with safe_open(place, framework="numpy") as file:
                header = json.loads(file.metadata()["checkpoint"])
        except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged on disk: {error}.") from None
        info = CheckpointInfo(**(header | {"spec": LoraSpec(**header["spec"]), "size": place.stat().st_size}))
        if info.expires is not None and info.expires < time.time():
            place.unlink(missing_ok=True)
            return None
        return info

    def info(self, path: CheckpointPath) -> CheckpointInfo:
        found = self.find(path)
        if found is None:
            raise CheckpointMissing(f"There is no checkpoint {path}.")
        return found

    def load(self, path: CheckpointPath) -> tuple[CheckpointInfo, Lora, AdamState | None]:
        info = self.info(path)
        with safe_open(self._file(path), framework="numpy") as file:
            tensors: dict[str, np.ndarray] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        adam = None
        if info.has_optimizer:
            adam = AdamState(
                _unflatten(tensors, "mean."), _unflatten(tensors, "square."), jnp.asarray(tensors["step"])
            )
        return info, _unflatten(tensors, "lora."), adam

    def delete(self, path: CheckpointPath) -> None:
        self.info(path)
        self._file(path).unlink(missing_ok=True)

    def set_expiry(self, path: CheckpointPath, expires: float | None) -> None:
        info, lora, adam = self.load(path)
        self.save(path, replace(info, expires=expires), lora, adam, overwrite=True)

    def copy(self, source: CheckpointPath, target: CheckpointPath, expires: float | None) -> None:
        info, lora, adam = self.load(source)
        self.save(target, replace(info, created=time.time(), expires=expires), lora, adam)

    def drop_run(self, run: str) -> None:
        CheckpointPath(run, "weights", "any").check()
        shutil.rmtree(self._root / run, ignore_errors=True)

    def list(self, run: str | None = None) -> list[tuple[CheckpointPath, CheckpointInfo]]:
        """All checkpoints, of one run or of every run, oldest first."""
        found = []
        for file in self._root.glob("*/*/*.safetensors"):
            path = CheckpointPath(
                file.parent.parent.name, file.parent.name, file.name.removesuffix(".safetensors")
            )
            info = self.find(path) if run in (None, path.run) else None
            if info is not None:
                found.append((path, info))
        return sorted(found, key=lambda pair: (pair[1].created, str(pair[0])))

    def _file(self, path: CheckpointPath) -> Path:
        return self._root / path.run / path.kind / f"{path.name}.safetensors"


def _flatten(lora: Lora) -> dict[str, np.ndarray]:
    return {
        f"{name}.{part}": np.asarray(value) for name, pair in lora.items() for part, value in pair.items()
    }


def _unflatten(tensors: Mapping[str, np.ndarray], prefix: str) -> Lora:
    lora: dict[str, dict[str, Any]] = {}
    for key, value in tensors.items():
        if key.startswith(prefix):
            name, part = key.removeprefix(prefix).split(".")
            lora.setdefault(name, {})[part] = jnp.asarray(value)
    return lora


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
