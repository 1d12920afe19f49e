"""What a dataset was, byte for byte: the digest by which two evaluations are known to be of the same."""

import hashlib
from collections.abc import Iterable

from termrl.errors import UserError
from termrl.tasks import HarborTask
from termrl.tasks.contents import content_digest


class DatasetChangedError(UserError):
    """The tasks are not those that the evaluation began with."""


def dataset_digests(tasks: Iterable[HarborTask]) -> dict[str, str]:
    return {task.task_name: content_digest(task.task_dir) for task in tasks}


def dataset_digest(digests: dict[str, str]) -> str:
    """The digest of a whole dataset, from those of its tasks in their order."""
    lines = "".join(f"{name}\0{digest}\n" for name, digest in digests.items())
    return hashlib.sha256(lines.encode()).hexdigest()[:16]


def require_same_dataset(dataset: str, before: dict[str, str], now: dict[str, str]) -> None:
    """Raises `DatasetChangedError` when a task was changed, added or taken away since the run began."""
    if before == now:
        return
    changed = [name for name in before if name in now and before[name] != now[name]]
    gone, added = [n for n in before if n not in now], [n for n in now if n not in before]
    kinds = (("changed", changed), ("gone", gone), ("new", added))
    said = ", ".join(f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds if names)
    raise DatasetChangedError(
        f"The dataset {dataset} is not what it was when this evaluation began: "
        f"{said or 'its order is another'}; "
        "bring back the tasks as they were, or give another run_name to begin anew."
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
