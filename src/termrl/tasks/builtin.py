"""The datasets that ship: `termrl/basics` for the quick start, `termrl/terminal-mini` for real models.

Both are generated and written to the cache on first use.
"""

from functools import cache
from pathlib import Path

from termrl.tasks.basics import BASICS, Split, basics_files
from termrl.tasks.mini import MINI, mini_files
from termrl.tasks.writing import Files, written_directory

BUILTIN_DATASETS: tuple[str, ...] = (BASICS, *(f"{BASICS}:{split}" for split in Split), MINI)
_SHORT_NAMES = {"terminal-mini": MINI}


def canonical_builtin(source: str) -> str | None:
    """The name of the built-in dataset that `source` means, or None if it means none."""
    name = _SHORT_NAMES.get(source, source)
    return name if name in BUILTIN_DATASETS else None


def builtin_directory(dataset: str) -> Path:
    """The directory that holds a built-in dataset or one split of it, written out if it isn't there yet."""
    name, _, split = dataset.partition(":")
    root = written_directory(name.removeprefix("termrl/"), _files(name))
    return root / split if split else root


@cache
def _files(name: str) -> Files:
    return mini_files() if name == MINI else basics_files()
