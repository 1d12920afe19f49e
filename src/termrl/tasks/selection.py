"""Which of a dataset's tasks are meant: by place, by name, or so many drawn by a seed.

A task keeps its place in the dataset whatever is chosen beside it, so that its seeds stay its own.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from termrl.tasks.errors import TaskError
from termrl.tasks.task import HarborTask


class TaskSelectionError(TaskError):
    """A place or a name that the dataset does not have."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A task and its place in the dataset."""

    index: int
    task: HarborTask


def choose_tasks(
    tasks: Sequence[HarborTask],
    *,
    indices: str | None = None,
    names: Sequence[str] | None = None,
    n_tasks: int | None = None,
    seed: int = 0,
) -> list[Chosen]:
    """The chosen tasks, in the order asked for; drawn ones and all of them in the dataset's."""
    if indices is not None:
        places = parse_indices(indices, len(tasks))
    elif names is not None:
        places = [_place_of(name, tasks) for name in dict.fromkeys(names)]
    elif n_tasks is not None and n_tasks < len(tasks):
        places = sorted(Random(f"tasks/{seed}").sample(range(len(tasks)), n_tasks))
    else:
        places = list(range(len(tasks)))
    return [Chosen(place, tasks[place]) for place in places]


def parse_indices(text: str, count: int) -> list[int]:
    """`84,64` or `0,3-5`: the places it names, each once, in its order."""
    places: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise TaskSelectionError(
                f"task_indices has '{part.strip()}', which is not a place or a range such as 3-5."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise TaskSelectionError(f"task_indices has '{part.strip()}', a range from high to low.")
        if last >= count:
            raise TaskSelectionError(
                f"task_indices asks for task {last}, and the dataset has {count}: 0 to {count - 1}."
            )
        places.update(dict.fromkeys(range(first, last + 1)))
    return list(places)


def _place_of(name: str, tasks: Sequence[HarborTask]) -> int:
    known = [task.task_name for task in tasks]
    if name in known:
        return known.index(name)
    short = [place for place, full in enumerate(known) if full.rpartition("/")[2] == name]
    if len(short) == 1:
        return short[0]
    close = difflib.get_close_matches(name, [*known, *(full.rpartition("/")[2] for full in known)], n=1)
    hint = f"did you mean {close[0]}?" if close else "`termrl tasks list` shows them."
    raise TaskSelectionError(f"The dataset has no task '{name}': {hint}")
