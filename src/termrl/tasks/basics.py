"""The built-in dataset `termrl/basics`: small tasks in one command, drawn from families.

The split is fixed: known families have train and held-out tasks, held-out families have held-out tasks only.
Train tasks draw train names alone, all others held-out names alone, so that what is evaluated was never seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from termrl.tasks import families
from termrl.tasks.families import Family, TaskSpec
from termrl.tasks.names import held_out_name, train_name
from termrl.tasks.writing import Files

BASICS = "termrl/basics"
TRAIN_TASKS_PER_FAMILY = 60
HELD_OUT_TASKS_PER_FAMILY = 8


class Split(StrEnum):
    """The parts of a built-in dataset, addressed as `termrl/basics:train` and so on."""

    TRAIN = "train"
    HELD_OUT = "held_out"
    HELD_OUT_FAMILIES = "held_out_families"


@dataclass(frozen=True)
class BuiltinTask:
    """A task of `termrl/basics` before it is written out."""

    name: str
    family: Family
    split: Split
    spec: TaskSpec


def builtin_tasks() -> Iterator[BuiltinTask]:
    """Every task of `termrl/basics`; the same ones in the same order on every machine, no two alike."""
    asked: set[str] = set()
    for family in families.KNOWN:
        for number in range(TRAIN_TASKS_PER_FAMILY + HELD_OUT_TASKS_PER_FAMILY):
            split = Split.TRAIN if number < TRAIN_TASKS_PER_FAMILY else Split.HELD_OUT
            yield _draw(family, number, split, asked)
    for family in families.HELD_OUT:
        for number in range(HELD_OUT_TASKS_PER_FAMILY):
            yield _draw(family, number, Split.HELD_OUT_FAMILIES, asked)


def task_files(task: BuiltinTask) -> Files:
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


def _draw(family: Family, number: int, split: Split, asked: set[str]) -> BuiltinTask:
    name = f"{family.name}-{number:03}"
    source = train_name if split is Split.TRAIN else held_out_name
    rng = Random(f"{BASICS}/{name}")
    while (spec := family.sample(rng, source)).instruction in asked:
        pass
    asked.add(spec.instruction)
    return BuiltinTask(name, family, split, spec)


def basics_files() -> Files:
    """Every file of the dataset, by its path: split, task, file."""
    return {
        f"{task.split}/{task.name}/{path}": file
        for task in builtin_tasks()
        for path, file in task_files(task).items()
    }
