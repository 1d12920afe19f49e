"""From a source to its tasks: a directory tree of any depth, one task directory, or a built-in dataset.

A name that is built in means the built-in dataset; a directory of the same name is addressed as ./name.
Tasks come in the order of their paths, and no two of them share a name.
"""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from termrl.tasks.builtin import BUILTIN_DATASETS, builtin_directory
from termrl.tasks.errors import (
    DuplicateTaskError,
    MissingTaskConfigError,
    NoTasksError,
    UnknownDatasetError,
    UnreadableTaskError,
)
from termrl.tasks.task import HarborTask, load_harbor_task


def load_harbor_tasks(source: str | Path) -> list[HarborTask]:
    """Load every task of a source; raises a `TaskError` if any of them cannot be used."""
    root = _directory_of(source)
    try:
        task_dirs = list(_task_dirs(root))
    except OSError as error:
        raise UnreadableTaskError(f"{error.filename or root} cannot be read: {error.strerror}.") from error
    if not task_dirs:
        raise NoTasksError(f"There is no task in {root}: no directory below it has a task.toml.")
    tasks: dict[str, HarborTask] = {}
    for task_dir in task_dirs:
        task = load_harbor_task(task_dir)
        if (other := tasks.setdefault(task.task_name, task)) is not task:
            raise DuplicateTaskError(
                f"Two tasks are named {task.task_name}, {other.task_dir} and {task.task_dir}; "
                "rename one of them."
            )
    return list(tasks.values())


def _directory_of(source: str | Path) -> Path:
    if source in BUILTIN_DATASETS:
        return builtin_directory(str(source))
    directory = Path(source).expanduser()
    if directory.is_dir():
        return directory
    if directory.exists():
        raise UnknownDatasetError(f"{source} is a file; name the directory of a task or of many tasks.")
    close = get_close_matches(str(source), BUILTIN_DATASETS, n=1, cutoff=0.5)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise UnknownDatasetError(
        f"There is no dataset {str(source)!r}{hint}: there is no directory {directory.absolute()}, "
        f"and the built-in datasets are {', '.join(BUILTIN_DATASETS)}."
    )


def _task_dirs(root: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for directory, subdirectories, files in os.walk(root, followlinks=True, onerror=_raise):
        # Links may lead to a directory a second time, or in a circle.
        real = os.path.realpath(directory)
        if real in seen:
            subdirectories.clear()
            continue
        seen.add(real)
        if "task.toml" in files:
            subdirectories.clear()
            yield Path(directory)
        elif "instruction.md" in files and {"environment", "tests"} & set(subdirectories):
            raise MissingTaskConfigError(f"{directory} looks like a task but has no task.toml; add one.")
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))


def _raise(error: OSError) -> None:
    raise error
