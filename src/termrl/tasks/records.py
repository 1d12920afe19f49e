"""What was fetched, where from and when: one small file a dataset, written when all of its tasks are there.

A dataset that has a record works offline. The record keeps the shape of every task (how many files, which
names and sizes), so an entry of the cache that something deleted or cut short is noticed and named.
"""

import hashlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from termrl.cache import cache_directory
from termrl.tasks.contents import TaskContents, survey
from termrl.tasks.errors import StaleCacheError, TaskError, UnwritableCacheError
from termrl.tasks.trees import find_tasks


@dataclass(frozen=True, slots=True)
class FetchedTask:
    """A task in the cache. One that was not fetched but lies where its owner keeps it has no shape."""

    path: str
    files: int
    size: int
    shape: str


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """`dataset` is what is typed, `source` says where it came from, `version` what that was at the time."""

    dataset: str
    source: str
    version: str
    fetched_at: float
    tasks: tuple[FetchedTask, ...]

    @property
    def size(self) -> int:
        return sum(task.size for task in self.tasks)

    @property
    def missing(self) -> list[str]:
        """The tasks that are gone from the cache, or are no longer what was fetched."""
        return [task.path for task in self.tasks if _damage(task) is not None]


def harbor_cache() -> Path:
    """Where Harbor keeps tasks."""
    return Path("~/.cache/harbor/tasks").expanduser()


def new_record(
    dataset: str, source: str, version: str, task_dirs: list[Path], owned: frozenset[Path] = frozenset()
) -> DatasetRecord:
    """Describe what was just fetched; `owned` are the directories that are not the cache's."""
    tasks = tuple(FetchedTask(str(path), 0, 0, "") if path in owned else _fetched(path) for path in task_dirs)
    return DatasetRecord(dataset, source, version, time.time(), tasks)


def write_record(record: DatasetRecord) -> None:
    path = _path(record.dataset)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(asdict(record)))
        draft.replace(path)
    except OSError as error:
        raise UnwritableCacheError(
            f"What was fetched cannot be recorded in {path.parent}: {error.strerror}; "
            "set XDG_CACHE_HOME to a directory that can be written to."
        ) from error


def find_record(dataset: str) -> DatasetRecord | None:
    """The record of a dataset, or None if it was never fetched or its record cannot be read."""
    return _read(_path(dataset))


def all_records() -> list[DatasetRecord]:
    """Every dataset that was fetched, the newest first."""
    found = (_read(path) for path in _directory().glob("*.json"))
    return sorted((record for record in found if record), key=lambda record: -record.fetched_at)


def others_in_cache() -> list[Path]:
    """The tasks in Harbor's cache that Harbor itself put there, for no dataset that was fetched by us."""
    if not harbor_cache().is_dir():
        return []
    known = {task.path for record in all_records() for task in record.tasks}
    found = (task.path for task in find_tasks(harbor_cache()))
    return [path for path in found if not known & {str(path), *map(str, path.parents)}]


def forget(record: DatasetRecord) -> None:
    _path(record.dataset).unlink(missing_ok=True)


def require_whole(task: FetchedTask, dataset: str) -> None:
    """Raise `StaleCacheError` if the cache no longer holds what was fetched of a task."""
    damage = _damage(task)
    if damage is not None:
        raise StaleCacheError(
            f"The cache no longer holds what was fetched of {Path(task.path).name}, a task of {dataset}: "
            f"{task.path} {damage}; `termrl tasks pull {dataset}` fetches it again."
        )


def _damage(task: FetchedTask) -> str | None:
    path = Path(task.path)
    if not path.is_dir():
        return "is gone"
    if not task.shape:
        return None
    try:
        found = survey(path)
    except TaskError:
        return "was changed"
    if found.files != task.files:
        return f"has {found.files} of its {task.files} files" if found.files < task.files else "has new files"
    return None if found.shape == task.shape else "was changed"


def _fetched(path: Path) -> FetchedTask:
    contents: TaskContents = survey(path)
    return FetchedTask(str(path), contents.files, contents.size, contents.shape)


def _directory() -> Path:
    return cache_directory() / "datasets"


def _path(dataset: str) -> Path:
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", dataset).strip("-")[:60]
    return _directory() / f"{stem}-{hashlib.sha256(dataset.encode()).hexdigest()[:8]}.json"


def _read(path: Path) -> DatasetRecord | None:
    try:
        table = json.loads(path.read_text())
        tasks = tuple(FetchedTask(**task) for task in table.pop("tasks"))
        return replace(DatasetRecord(**table, tasks=()), tasks=tasks)
    except (OSError, ValueError, TypeError, KeyError):
        return None
