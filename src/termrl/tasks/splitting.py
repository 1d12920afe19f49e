"""Splits a dataset into what is trained on and what is held out.

`by=task` draws from all tasks alike; `by=category` and `by=difficulty` draw from each category, or each
difficulty, in the same proportion, so that both sides have the mixture of the whole. The draw depends on
nothing but the names and the seed.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from termrl.tasks.errors import SplitError
from termrl.tasks.lists import write_list
from termrl.tasks.task import HarborTask

type By = Literal["task", "category", "difficulty"]
CHOICES: tuple[By, ...] = ("task", "category", "difficulty")


@dataclass(frozen=True, slots=True)
class SplitLists:
    """The names on both sides and the list files that hold them."""

    train: tuple[str, ...]
    holdout: tuple[str, ...]
    train_path: Path
    holdout_path: Path


def split_names(
    tasks: Sequence[HarborTask], holdout: float, seed: int, by: By
) -> tuple[list[str], list[str]]:
    """The names to train on and those held out, each in the dataset's order; raises `SplitError`."""
    if not 0 < holdout < 1:
        raise SplitError(f"holdout is {holdout:g}: it is a share, so between 0 and 1.")
    groups: dict[str, list[str]] = defaultdict(list)
    for task in tasks:
        groups["" if by == "task" else str(task.config.metadata.get(by, ""))].append(task.task_name)
    held: set[str] = set()
    owed = 0.0
    for key in sorted(groups):
        names = sorted(groups[key])
        Random(f"{seed}/{by}/{key}").shuffle(names)
        # What rounding takes from one group is given to the next: the sides come out in the share asked for.
        owed += holdout * len(names)
        count = min(len(names), round(owed))
        owed -= count
        held.update(names[:count])
    order = [task.task_name for task in tasks]
    if not held or len(held) == len(order):
        raise SplitError(
            f"{len(order)} tasks cannot be split with holdout={holdout:g}: one side would have none."
        )
    return [name for name in order if name not in held], [name for name in order if name in held]


def write_split(
    tasks: Sequence[HarborTask], dataset: str, directory: Path, holdout: float, seed: int, by: By
) -> SplitLists:
    """Split and write both list files; an unusable split writes none of them."""
    train, held = split_names(tasks, holdout, seed, by)
    path = Path(dataset).expanduser()
    # A list is read from anywhere, so a directory is named by its whole path.
    source = str(path.resolve()) if path.exists() else dataset
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", path.name if path.exists() else dataset).strip("-")
    how = f"termrl tasks split {dataset} holdout={holdout:g} seed={seed} by={by}"
    lists = SplitLists(
        tuple(train), tuple(held), directory / f"{stem}-train.txt", directory / f"{stem}-holdout.txt"
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_list(lists.train_path, source, lists.train, f"{how}: {len(train)} tasks to train on")
        write_list(lists.holdout_path, source, lists.holdout, f"{how}: {len(held)} tasks held out")
    except OSError as error:
        raise SplitError(f"The lists cannot be written to {directory}: {error.strerror}.") from error
    return lists
