"""The task directories in a tree of any depth: one task, a checkout of many, Harbor's cache with its hashes.

A directory with a task.toml is a task and is not searched further; so is one of Terminal-Bench 1 (task.yaml
beside run-tests.sh or docker-compose.yaml). Hidden directories are passed over, links are followed once.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path


class Kind(Enum):
    HARBOR = auto()
    TERMINAL_BENCH_1 = auto()
    WITHOUT_CONFIG = auto()


@dataclass(frozen=True, slots=True)
class FoundTask:
    path: Path
    kind: Kind


def find_tasks(root: Path) -> Iterator[FoundTask]:
    """Every task directory at or below `root`, in the order of their paths; raises `OSError`."""
    seen: set[str] = set()
    for directory, subdirectories, files in os.walk(root, followlinks=True, onerror=_raise):
        # Links may lead to a directory a second time, or in a circle.
        real = os.path.realpath(directory)
        if real in seen:
            subdirectories.clear()
            continue
        seen.add(real)
        kind = _kind(set(files), set(subdirectories))
        if kind is not None:
            subdirectories.clear()
            yield FoundTask(Path(directory), kind)
        subdirectories[:] = sorted(name for name in subdirectories if not name.startswith("."))


def _kind(files: set[str], subdirectories: set[str]) -> Kind | None:
    if "task.toml" in files:
        return Kind.HARBOR
    if "task.yaml" in files and files & {"run-tests.sh", "docker-compose.yaml"}:
        return Kind.TERMINAL_BENCH_1
    if "instruction.md" in files and subdirectories & {"environment", "tests"}:
        return Kind.WITHOUT_CONFIG
    return None


def _raise(error: OSError) -> None:
    raise error
