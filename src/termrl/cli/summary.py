"""The summary of a stored run."""

from pathlib import Path
from typing import Any


def summary_of(path: Path) -> dict[str, Any]:
    from termrl.evaluate.summary import summarize
    from termrl.store import Run

    with Run.open(path) as run:
        return summarize(run)


def is_evaluation(path: Path) -> bool:
    from termrl.store import Run

    with Run.open(path) as run:
        return run.kind == "eval"
