"""Which tasks are trained on and which are held out.

Filters narrow the dataset by name, place, tag and difficulty. The held-out tasks are a second dataset, those
that a file names, or a share drawn by the seed: by a hash of each task's name, never by its place in the
alphabet, so that adding a task moves no other. A task is never on both sides.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from random import Random

from termrl.config import TrainConfig
from termrl.errors import UserError
from termrl.tasks import HarborTask


class SelectionError(UserError):
    """The filters or the split leave no task, or name one that is not there."""


def select_tasks(tasks: Sequence[HarborTask], config: TrainConfig) -> list[HarborTask]:
    """The tasks that the filters leave, in the dataset's order."""
    chosen = list(tasks)
    if config.task_indices is not None:
        chosen = [chosen[index] for index in _indices(config.task_indices, len(chosen))]
    if config.task_ids is not None:
        chosen = _named(chosen, config.task_ids, "task_ids")
    if config.task_tags is not None:
        wanted = set(config.task_tags)
        chosen = [task for task in chosen if wanted & _tags(task)]
        _require(chosen, f"task_tags={','.join(config.task_tags)}", {tag for t in tasks for tag in _tags(t)})
    if config.task_difficulty is not None:
        chosen = [task for task in chosen if _difficulty(task) in config.task_difficulty]
        _require(
            chosen, f"task_difficulty={','.join(config.task_difficulty)}", {_difficulty(t) for t in tasks}
        )
    if config.n_tasks is not None and config.n_tasks < len(chosen):
        kept = set(Random(f"{config.seed}/n_tasks").sample(range(len(chosen)), config.n_tasks))
        chosen = [task for index, task in enumerate(chosen) if index in kept]
    return chosen


def split_tasks(
    tasks: Sequence[HarborTask], config: TrainConfig
) -> tuple[list[HarborTask], list[HarborTask] | None]:
    """The tasks to train on and those held out of them; None where a second dataset is held out instead."""
    if config.eval_tasks_file is not None:
        held_out = _named(tasks, _read_names(config.eval_tasks_file), "eval_tasks_file")
    elif config.eval_fraction is not None:
        ranked = sorted(tasks, key=lambda task: _rank(config.seed, task.task_name))
        held_out = ranked[: max(1, round(config.eval_fraction * len(tasks)))]
    else:
        return list(tasks), None
    names = {task.task_name for task in held_out}
    training = [task for task in tasks if task.task_name not in names]
    if not training:
        raise SelectionError("Every task is held out, so there is none to train on: hold out fewer.")
    return training, held_out


def refuse_overlap(training: Sequence[HarborTask], held_out: Sequence[HarborTask]) -> None:
    """A task that is trained on cannot be held out."""
    both = {task.task_dir.resolve() for task in training} & {task.task_dir.resolve() for task in held_out}
    if both:
        some = ", ".join(sorted(path.name for path in both)[:3])
        raise SelectionError(
            f"{len(both)} tasks are both trained on and held out ({some}): name another eval_dataset, or "
            "leave it to eval_fraction."
        )


def _rank(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()


def _named(tasks: Sequence[HarborTask], names: Sequence[str], setting: str) -> list[HarborTask]:
    by_name = {task.task_name: task for task in tasks} | {task.task_dir.name: task for task in tasks}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise SelectionError(
            f"{setting} names '{unknown[0]}', which is not a task of the dataset; it has "
            f"{', '.join(task.task_name for task in tasks[:5])}{' and others' if len(tasks) > 5 else ''}."
        )
    return list({by_name[name].task_name: by_name[name] for name in names}.values())


def _read_names(source: str) -> list[str]:
    path = Path(source).expanduser()
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise SelectionError(f"eval_tasks_file is '{source}', which could not be read: {error}.") from error
    names = [line for line in lines if line]
    if not names:
        raise SelectionError(f"eval_tasks_file is '{source}', which names no task: one name a line.")
    return names


def _indices(text: str, count: int) -> list[int]:
    places: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            places += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise SelectionError(f"task_indices is '{text}': it is written like 0-9,12.") from None
    beyond = [place for place in places if not 0 <= place < count]
    if beyond or not places:
        raise SelectionError(
            f"task_indices is '{text}', but the dataset has {count} tasks, counted from 0 to {count - 1}."
        )
    return list(dict.fromkeys(places))


def _tags(task: HarborTask) -> set[str]:
    metadata = task.config.metadata
    tags = metadata.get("tags", [])
    return {str(tag) for tag in tags if tag} | {
        str(metadata[key]) for key in ("category", "family") if metadata.get(key)
    }


def _difficulty(task: HarborTask) -> str:
    return str(task.config.metadata.get("difficulty", "unknown"))


def _require(chosen: Sequence[HarborTask], filter_: str, known: set[str]) -> None:
    if not chosen:
        raise SelectionError(
            f"No task is left by {filter_}; the tasks have {', '.join(sorted(known)) or 'none'}."
        )
