"""The tasks that a run uses: those of its dataset, without the broken ones it may skip and the unfit ones.

Whatever is left out is said, with its reason: a rate over fewer tasks than the dataset has is another rate.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from termrl.tasks.datasets import OnBadTask, load_dataset
from termrl.tasks.quarantine import AUTOMATIC, find_quarantines, without_unfit
from termrl.tasks.task import HarborTask

type Note = Callable[[str], None]
_NAMED = 5


def usable_tasks(
    source: str,
    *,
    run_root: Path,
    on_bad_task: OnBadTask = "error",
    quarantine: str = AUTOMATIC,
    note: Note = lambda text: None,
) -> list[HarborTask]:
    """The tasks of `source` that can be used; `note` hears of every kind that was left out."""
    tasks = loaded_tasks(source, on_bad_task=on_bad_task, note=note)
    return fit_tasks(tasks, source, run_root=run_root, quarantine=quarantine, note=note)


def loaded_tasks(source: str, *, on_bad_task: OnBadTask, note: Note) -> list[HarborTask]:
    """The tasks of `source`, fetched if they must be; `note` hears of that, and of those it skips."""

    def fetching(what: str, done: int, total: int | None) -> None:
        if done in (0, total):
            note(what if total is None else f"{what}: {done} of {total} tasks")

    dataset = load_dataset(source, on_bad_task=on_bad_task, told=fetching)
    if dataset.skipped:
        note(f"{source}: {len(dataset.skipped)} broken tasks are left out")
        for bad in dataset.skipped[:_NAMED]:
            note(bad.reason)
    return list(dataset.tasks)


def fit_tasks(
    tasks: Sequence[HarborTask], source: str, *, run_root: Path, quarantine: str, note: Note
) -> list[HarborTask]:
    """Those of `tasks` that are not in quarantine; `note` hears of the others."""
    paths = find_quarantines(quarantine, source, run_root)
    if not paths:
        return list(tasks)
    kept, unfit = without_unfit(tasks, paths)
    if unfit:
        names = ", ".join(f"{name} ({row.verdict})" for name, row in list(unfit.items())[:_NAMED])
        more = ", ..." if len(unfit) > _NAMED else ""
        note(f"{source}: {len(unfit)} of {len(tasks)} tasks are in quarantine by {paths[0]}: {names}{more}")
    return kept
