"""Which tasks are trained on and which are held out.

Filters narrow the dataset by name, place, tag and difficulty. The held-out tasks are a second dataset, those
that a file names, or a share drawn by the seed: by a hash of each task's name, never by its place in the
alphabet, so that adding a task moves no other. A task is never on both sides.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from termrl.config import TrainConfig
from termrl.errors import UserError
from termrl.tasks import HarborTask
from termrl.tasks.selection import choose_tasks


class SelectionError(UserError):
    """The filters or the split leave no task."""


def select_tasks(tasks: Sequence[HarborTask], config: TrainConfig) -> list[HarborTask]:
    """The tasks that the filters leave, in the dataset's order."""
    chosen = [each.task for each in choose_tasks(tasks, indices=config.task_indices, names=config.task_ids)]
    if config.task_tags is not None:
        wanted = set(config.task_tags)
        chosen = [task for task in chosen if wanted & _tags(task)]
        _require(chosen, f"task_tags={','.join(config.task_tags)}", {tag for t in tasks for tag in _tags(t)})
    if config.task_difficulty is not None:
        chosen = [task for task in chosen if _difficulty(task) in config.task_difficulty]
        _require(
            chosen, f"task_difficulty={','.join(config.task_difficulty)}", {_difficulty(t) for t in tasks}
        )
    if config.n_tasks is not None:
        chosen = [each.task for each in choose_tasks(chosen, n_tasks=config.n_tasks, seed=config.seed)]
    return chosen


def split_tasks(
    tasks: Sequence[HarborTask], config: TrainConfig
) -> tuple[list[HarborTask], list[HarborTask] | None]:
    """The tasks to train on and those held out of them; None where a second dataset is held out instead."""
    if config.eval_tasks_file is not None:
        held_out = [each.task for each in choose_tasks(tasks, names=_read_names(config.eval_tasks_file))]
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
