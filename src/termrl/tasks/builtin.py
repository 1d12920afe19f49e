"""The built-in dataset `termrl/basics`, written out from its families on first use.

The split is fixed: known families have train and held-out tasks, held-out families have held-out tasks only.
Train tasks draw train names alone, all others held-out names alone, so that what is evaluated was never seen.
The directory in the cache is named after the hash of what is in it and appears whole or not at all: processes
may write it at the same time, and a change of a family makes a new directory.
"""

import errno
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from random import Random

from termrl.cache import cache_directory
from termrl.tasks import families
from termrl.tasks.errors import UnwritableCacheError
from termrl.tasks.families import Family, TaskSpec
from termrl.tasks.names import held_out_name, train_name

BASICS = "termrl/basics"
TRAIN_TASKS_PER_FAMILY = 20
HELD_OUT_TASKS_PER_FAMILY = 8


class Split(StrEnum):
    """The parts of a built-in dataset, addressed as `termrl/basics:train` and so on."""

    TRAIN = "train"
    HELD_OUT = "held_out"
    HELD_OUT_FAMILIES = "held_out_families"


BUILTIN_DATASETS: tuple[str, ...] = (BASICS, *(f"{BASICS}:{split}" for split in Split))


@dataclass(frozen=True)
class BuiltinTask:
    """A task of the built-in dataset before it is written out."""

    name: str
    family: Family
    split: Split
    spec: TaskSpec


def builtin_tasks() -> Iterator[BuiltinTask]:
    """Every task of `termrl/basics`; the same ones in the same order on every machine."""
    for family in families.KNOWN:
        for number in range(TRAIN_TASKS_PER_FAMILY + HELD_OUT_TASKS_PER_FAMILY):
            split = Split.TRAIN if number < TRAIN_TASKS_PER_FAMILY else Split.HELD_OUT
            yield _draw(family, number, split)
    for family in families.HELD_OUT:
        for number in range(HELD_OUT_TASKS_PER_FAMILY):
            yield _draw(family, number, Split.HELD_OUT_FAMILIES)


def builtin_directory(dataset: str) -> Path:
    """The directory that holds a built-in dataset or one split of it, written out if it isn't there yet."""
    _, _, split = dataset.partition(":")
    files = _dataset_files()
    root = cache_directory() / "tasks" / f"basics-{_content_hash(files)}"
    if not root.is_dir():
        try:
            _write_whole(root, files)
        except OSError as error:
            raise UnwritableCacheError(
                f"The built-in tasks cannot be written to {root}: {error.strerror}; "
                "set XDG_CACHE_HOME to a directory that can be written to."
            ) from error
    return root / split if split else root


def task_files(task: BuiltinTask) -> dict[str, tuple[str, int]]:
    """The content and mode of every file of a task directory, by its path in that directory."""
    # The agent is shown instruction.md as it is, so it has no newline that the spec hasn't.
    files = {
        "instruction.md": (task.spec.instruction, 0o644),
        "task.toml": (_TASK_TOML.format(family=task.family, split=task.split), 0o644),
        "environment/Dockerfile": (_dockerfile(task.spec), 0o644),
        "solution/solve.sh": (f"#!/bin/bash\n{task.spec.command}\n", 0o755),
        "tests/test.sh": (task.spec.test, 0o755),
    }
    for path, content in task.spec.files.items():
        files[f"environment/files/{path}"] = (content, 0o644)
    return files


_TASK_TOML = """\
schema_version = "1.4"

[metadata]
family = "{family.name}"
split = "{split}"
difficulty = "{family.difficulty}"
category = "{family.category}"

[environment]
network_mode = "no-network"
build_timeout_sec = 120

[agent]
timeout_sec = 60

[verifier]
timeout_sec = 30
"""


def _dockerfile(spec: TaskSpec) -> str:
    copy = "COPY files/ /app/\n" if spec.files else ""
    return f"FROM termrl/host\nWORKDIR /app\n{copy}"


def _draw(family: Family, number: int, split: Split) -> BuiltinTask:
    name = f"{family.name}-{number:03}"
    source = train_name if split is Split.TRAIN else held_out_name
    return BuiltinTask(name, family, split, family.sample(Random(f"{BASICS}/{name}"), source))


@cache
def _dataset_files() -> dict[str, tuple[str, int]]:
    return {
        f"{task.split}/{task.name}/{path}": file
        for task in builtin_tasks()
        for path, file in task_files(task).items()
    }


def _content_hash(files: dict[str, tuple[str, int]]) -> str:
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]


def _write_whole(root: Path, files: dict[str, tuple[str, int]]) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        # Modes are set, not left to the umask: they become the modes of the files in the sandbox.
        draft.chmod(0o755)
        for directory in sorted({parent for name in files for parent in Path(name).parents[:-1]}):
            (draft / directory).mkdir()
            (draft / directory).chmod(0o755)
        for name, (content, mode) in files.items():
            path = draft / name
            path.write_text(content)
            path.chmod(mode)
        draft.rename(root)
    except OSError as error:
        # Another process was first; what it wrote is the same.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
