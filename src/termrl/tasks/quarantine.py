"""Tasks that a check found unfit, by name: what training and evaluation leave out.

One file a dataset, `quarantine/NAME.json` in the directory of the runs, written by `termrl tasks check` and
read by `train` and `eval` of the dataset of that name. It may be edited by hand: what is in `tasks` is left
out, for the reason given there.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from termrl.errors import StorageError
from termrl.tasks.builtin import canonical_builtin
from termrl.tasks.errors import MalformedQuarantineError, NoTasksError
from termrl.tasks.lists import read_list
from termrl.tasks.task import HarborTask

AUTOMATIC = "auto"
OFF = "none"


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a task is left out: what it was found to be, and the evidence in a sentence."""

    verdict: str
    reason: str


def quarantine_path(dataset: str, run_root: Path) -> Path:
    """The file of a dataset. A path means the same dataset from wherever it is typed."""
    name = canonical_builtin(dataset) or dataset
    # A part of a built-in dataset is checked with the whole.
    name = name.partition(":")[0] if name.startswith("termrl/") else name
    path = Path(name).expanduser()
    if path.exists():
        name = str(path.resolve())
    slug = re.sub(r"[^A-Za-z0-9.@=]+", "-", name).strip("-")
    return run_root / "quarantine" / f"{slug[-120:]}.json"


def read_quarantine(path: Path) -> dict[str, Unfit]:
    """The tasks that a quarantine file names; raises `MalformedQuarantineError`."""
    try:
        table = json.loads(path.read_bytes())
        return {
            str(name): Unfit(str(row["verdict"]), str(row["reason"])) for name, row in table["tasks"].items()
        }
    except OSError as error:
        raise MalformedQuarantineError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedQuarantineError(
            f"{path} is not a quarantine file: it takes tasks, and a verdict and a reason for each; "
            "`termrl tasks check` writes one."
        ) from error


def write_quarantine(path: Path, dataset: str, unfit: Mapping[str, Unfit], checked: Iterable[str]) -> None:
    """Put down what a check found; what stands there of tasks that were not checked stays."""
    before = read_quarantine(path) if path.exists() else {}
    fresh = set(checked)
    kept = {name: row for name, row in before.items() if name not in fresh}
    rows = {name: asdict(row) for name, row in sorted({**kept, **unfit}.items())}
    text = json.dumps({"dataset": dataset, "checked_at": time.time(), "tasks": rows}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(text + "\n")
        draft.replace(path)
    except OSError as error:
        raise StorageError(f"The quarantine file {path} could not be written: {error.strerror}.") from error


def find_quarantines(setting: str, dataset: str, run_root: Path) -> list[Path]:
    """The files that a setting means: what there is for the dataset, none, or the one it names.

    A list of tasks is under the quarantines of the datasets that it lists.
    """
    if setting == OFF:
        return []
    if setting != AUTOMATIC:
        return [Path(setting).expanduser()]
    listed = Path(dataset).expanduser()
    names = {dataset}
    if listed.is_file() and listed.suffix != ".json":
        names |= {task.dataset for task in read_list(listed) if task.dataset is not None}
    paths = (quarantine_path(name, run_root) for name in sorted(names))
    return [path for path in paths if path.exists()]


def without_unfit(
    tasks: Sequence[HarborTask], paths: Sequence[Path]
) -> tuple[list[HarborTask], dict[str, Unfit]]:
    """The tasks that are not in quarantine, and those that are; raises `NoTasksError` if all are."""
    named = {name: unfit for path in paths for name, unfit in read_quarantine(path).items()}
    kept = [task for task in tasks if task.task_name not in named]
    left_out = {task.task_name: named[task.task_name] for task in tasks if task.task_name in named}
    if not kept:
        raise NoTasksError(
            f"All {len(tasks)} tasks are in quarantine by {_joined(paths)}: mend them and check them again, "
            "or set quarantine=none."
        )
    return kept, left_out


def _joined(paths: Sequence[Path]) -> str:
    return " and ".join(map(str, paths))
