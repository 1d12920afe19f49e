"""The summary of a stored run, with where its learning curve is."""

from pathlib import Path
from typing import Any

PICTURE = "learning_curve.png"


def summary_of(path: Path) -> dict[str, Any]:
    from termrl.evaluate.summary import summarize
    from termrl.store import Run

    with Run.open(path) as run:
        summary = summarize(run)
    picture = path / PICTURE
    return summary | {"path": str(path), "picture": str(picture) if picture.is_file() else None}
