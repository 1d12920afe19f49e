"""The tasks that a run uses: those of its dataset, without the broken ones it may skip and the unfit ones.

Whatever is left out is said, with its reason: a rate over fewer tasks than the dataset has is another rate.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from termrl.tasks.datasets import OnBadTask, load_dataset
from termrl.tasks.quarantine import AUTOMATIC, find_quarantines, without_unfit
from termrl.tasks.task import HarborTask

if TYPE_CHECKING:
    from termrl.tasks.fetching import Told

_NAMED = 5


def usable_tasks(
    source: str,
    *,
    run_root: Path,
    on_bad_task: OnBadTask = "error",
    quarantine: str = AUTOMATIC,
    note: Callable[[str], None] = lambda text: None,
    told: "Told | None" = None,
) -> list[HarborTask]:
    """The tasks of `source` that can be used; `note` hears of every kind that was left out."""
    dataset = load_dataset(source, on_bad_task=on_bad_task, told=told)
    if dataset.skipped:
        note(f"{source}: {len(dataset.skipped)} broken tasks are left out")
        for bad in dataset.skipped[:_NAMED]:
            note(bad.reason)
    tasks = list(dataset.tasks)
    paths = find_quarantines(quarantine, source, run_root)
    if not paths:
        return tasks
    kept, unfit = without_unfit(tasks, paths)
    if unfit:
        names = ", ".join(f"{name} ({row.verdict})" for name, row in list(unfit.items())[:_NAMED])
        more = ", ..." if len(unfit) > _NAMED else ""
        note(f"{source}: {len(unfit)} of {len(tasks)} tasks are in quarantine by {paths[0]}: {names}{more}")
    return kept
