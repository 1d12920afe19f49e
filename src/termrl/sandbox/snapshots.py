"""The records of snapshots: what was built, for which content, where it is, and until when.

One small file per snapshot, named by its key and put in place whole, so that two processes may write at once.
The key is content only: the image by its digest, the Dockerfile, every byte of the build context, what the
agent installs, the backend and the version of this format. A task's name is not part of it.
"""

import hashlib
import itertools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from termrl.cache import cache_directory

FORMAT = "snapshot 1"
_handed_over: dict[str, Mapping[str, str]] = {}
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Snapshot:
    """`handle` is what the backend knows it by: a layer, an image, a snapshot's name."""

    key: str
    backend: str
    handle: str
    agent: str
    created: float
    expires: float | None
    build_seconds: float
    tasks: tuple[str, ...] = ()
    size: int | None = None

    @property
    def expired(self) -> bool:
        return self.expires is not None and self.expires <= time.time()

    def renewed(self, ttl_hours: float | None) -> "Snapshot":
        return replace(self, expires=None if ttl_hours is None else time.time() + ttl_hours * 3600)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "expired": self.expired}


class SnapshotStore:
    def __init__(self, root: Path | None = None) -> None:
        self._root = root or cache_directory() / "snapshots"

    def get(self, backend: str, key: str) -> Snapshot | None:
        try:
            return _parse(self._path(backend, key).read_text())
        except (OSError, ValueError, TypeError):
            return None

    def put(self, snapshot: Snapshot) -> None:
        path = self._path(snapshot.backend, snapshot.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        pending = path.with_suffix(f".{os.getpid()}-{next(_numbers)}.new")
        pending.write_text(json.dumps(asdict(snapshot)))
        pending.replace(path)

    def remove(self, snapshot: Snapshot) -> None:
        self._path(snapshot.backend, snapshot.key).unlink(missing_ok=True)

    def all(self, backend: str | None = None) -> list[Snapshot]:
        """Every record, the oldest first."""
        found = []
        for path in self._root.glob(f"{backend or '*'}/*.json"):
            snapshot = self.get(path.parent.name, path.stem)
            if snapshot is not None:
                found.append(snapshot)
        return sorted(found, key=lambda each: each.created)

    def _path(self, backend: str, key: str) -> Path:
        return self._root / backend / f"{key}.json"


def _parse(text: str) -> Snapshot:
    values = json.loads(text)
    return Snapshot(**{**values, "tasks": tuple(values["tasks"])})


def content_key(backend: str, agent: str, image: str, environment_dir: Path) -> str:
    """The hash of everything a snapshot is made of."""
    digest = hashlib.sha256(repr((FORMAT, backend, agent, image)).encode())
    paths = sorted(environment_dir.rglob("*")) if environment_dir.is_dir() else []
    for path in paths:
        status = path.lstat()
        name = path.relative_to(environment_dir).as_posix()
        digest.update(repr((name, status.st_mode)).encode())
        if path.is_symlink():
            digest.update(os.readlink(path).encode())
        elif path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:24]


def hand_over(handles: Mapping[str, str]) -> str:
    """A name for the handles of a run's tasks, by environment directory: too many for a trial's settings."""
    name = f"snapshots-{next(_numbers)}"
    _handed_over[name] = dict(handles)
    return name


def handle_for(name: str | None, environment_dir: Path) -> str | None:
    """The snapshot to start from, if this run has one for that directory."""
    return None if name is None else _handed_over.get(name, {}).get(str(environment_dir.resolve()))
