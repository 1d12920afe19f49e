"""What the `termrl snapshot` commands share: which backend, which agent, which records."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from termrl.cli.arguments import UsageError

if TYPE_CHECKING:
    from termrl.sandbox.backends import Backend
    from termrl.sandbox.snapshots import Snapshot
    from termrl.tasks import HarborTask

BACKEND_OPTIONS = ("environment_type", "environment_kwargs", "base_images")


def backend_of(options: Mapping[str, str]) -> "Backend":
    from termrl.sandbox.backends import Backend, parse_pairs

    def pairs(name: str) -> tuple[str, ...]:
        return tuple(part for part in options.get(name, "").split(",") if part)

    kwargs = parse_pairs(pairs("environment_kwargs"), "environment_kwargs", as_json=True)
    images = parse_pairs(pairs("base_images"), "base_images", as_json=False)
    if images:
        kwargs["base_images"] = images
    backend = Backend(options.get("environment_type", "local"), kwargs)
    backend.check()
    return backend


def chosen_tasks(dataset: str, indices: str | None) -> "Sequence[HarborTask]":
    """The tasks of a dataset, or those at `3,5-8` of it."""
    from termrl.tasks import load_harbor_tasks

    tasks = load_harbor_tasks(dataset)
    if indices is None:
        return tasks
    chosen = []
    for part in indices.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"task_indices is '{indices}': write numbers and ranges, such as 0,3,5-8.")
        for index in range(int(first), int(last or first) + 1):
            if index >= len(tasks):
                raise UsageError(
                    f"task_indices has {index}, and {dataset} has {len(tasks)} tasks, from 0 on."
                )
            chosen.append(tasks[index])
    return chosen


def hours(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise UsageError(f"ttl_hours is '{text}': it must be a number above 0.")
    return value


def selected(words: Sequence[str]) -> "list[Snapshot]":
    """The records whose key begins with a word, or that were made for a task of that name; or `all`."""
    from termrl.sandbox.snapshots import SnapshotStore

    records = SnapshotStore().all()
    if not words:
        raise UsageError("Say which: a key (or how it begins), a task's name, or `all`.")
    found: dict[str, Snapshot] = {}
    for word in words:
        matching = [
            each for each in records if word == "all" or each.key.startswith(word) or word in each.tasks
        ]
        if not matching and word != "all":
            raise UsageError(f"There is no snapshot '{word}': `termrl snapshot list` shows what there is.")
        found |= {f"{each.backend}/{each.key}": each for each in matching}
    return list(found.values())
