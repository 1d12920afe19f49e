"""Pass rates across runs: one JSON file beside the runs, by model and task.

Each run writes its own part under its name, so writing again changes nothing; a new run reads what all of
the others found. A run keeps what it began with, so that it goes on the same whatever others write.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from termrl.learn.curriculum import PassRate

FILE = "pass-rates.json"


def read_pass_rates(run_root: Path, model_name: str) -> dict[str, PassRate]:
    """What earlier runs of a model found, as a belief that new results soon outweigh."""
    totals: dict[str, PassRate] = {}
    for tasks in _read(run_root / FILE).get(model_name, {}).values():
        for name, (solved, scored) in tasks.items():
            before = totals.get(name, PassRate())
            totals[name] = PassRate(before.solved + solved, before.scored + scored)
    return {name: rate.as_prior() for name, rate in totals.items()}


def write_pass_rates(
    run_root: Path, model_name: str, run_name: str, rates: Mapping[str, tuple[int, int]]
) -> None:
    """Keeps a run's own solved and scored attempts by task."""
    with (run_root / f".{FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _read(run_root / FILE)
        known.setdefault(model_name, {})[run_name] = {name: list(rate) for name, rate in rates.items()}
        fresh = run_root / f".{FILE}.part"
        fresh.write_text(json.dumps(known, indent=1, sort_keys=True))
        os.replace(fresh, run_root / FILE)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    known: dict[str, Any] = json.loads(path.read_text())
    return known
