"""List files: the tasks of a dataset that are meant, one a line.

A line `dataset: NAME` says where the names after it are looked up; without one a line is the path of a task
directory, seen from the list file. Blank lines and lines that begin with # mean nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from termrl.tasks.errors import MalformedListError

_DATASET = "dataset:"
_LARGEST_LIST_BYTES = 10 * 1024**2


@dataclass(frozen=True, slots=True)
class ListedTask:
    """One line: a task by its name in a dataset, or, where `dataset` is None, by its path."""

    dataset: str | None
    name: str
    line: int


def read_list(path: Path) -> list[ListedTask]:
    """The tasks that a list file names, in its order; raises `MalformedListError`."""
    try:
        if path.stat().st_size > _LARGEST_LIST_BYTES:
            raise MalformedListError(f"{path} is too big for a list of tasks.")
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise MalformedListError(f"{path} is not a list of tasks: it is not UTF-8 text.") from error
    except OSError as error:
        raise MalformedListError(f"{path} cannot be read: {error.strerror}.") from error
    dataset: str | None = None
    found: list[ListedTask] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line.startswith(_DATASET):
            dataset = line.removeprefix(_DATASET).strip() or None
        elif line and not line.startswith("#"):
            found.append(ListedTask(dataset, line, number))
    if not found:
        raise MalformedListError(f"{path} names no task.")
    return found


def write_list(path: Path, dataset: str, names: Iterable[str], comment: str) -> None:
    """Write a list file in one go: it is there whole or not at all."""
    lines = [f"# {comment}", f"{_DATASET} {dataset}", *names]
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text("\n".join(lines) + "\n")
    draft.replace(path)
