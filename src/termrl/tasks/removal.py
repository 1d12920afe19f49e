"""Removes a fetched dataset from Harbor's cache: what no other fetched dataset shares, and nothing else."""

import shutil
from difflib import get_close_matches
from pathlib import Path

from termrl.tasks.builtin import canonical_builtin
from termrl.tasks.errors import UnknownDatasetError, UnreadableTaskError
from termrl.tasks.records import all_records, find_record, forget, harbor_cache
from termrl.tasks.references import read_reference


def remove_dataset(name: str) -> int:
    """Remove a dataset and say how many entries of the cache went; raises a `TaskError`."""
    if canonical_builtin(name) is not None:
        raise UnknownDatasetError(f"{name} is built in and cannot be removed.")
    record = find_record(str(read_reference(name)))
    records = all_records()
    if record is None:
        close = get_close_matches(name, [each.dataset for each in records], n=1)
        hint = f"did you mean {close[0]}?" if close else "`termrl tasks datasets` lists what was."
        raise UnknownDatasetError(f"{name} was not fetched, so there is nothing to remove: {hint}")
    shared = {task.path for each in records if each.dataset != record.dataset for task in each.tasks}
    cache = harbor_cache().resolve()
    # The record goes first: a removal that is broken off leaves entries that nobody relies on.
    forget(record)
    removed = 0
    for task in record.tasks:
        path = Path(task.path)
        if task.path in shared or not path.resolve().is_relative_to(cache) or not path.exists():
            continue
        try:
            shutil.rmtree(path)
            # Harbor gives every task a directory of its own, named by a hash.
            if path.parent != harbor_cache() and not any(path.parent.iterdir()):
                path.parent.rmdir()
        except OSError as error:
            raise UnreadableTaskError(
                f"{error.filename or path} cannot be removed: {error.strerror}."
            ) from error
        removed += 1
    return removed
