"""`termrl runs list`: the runs under a directory, oldest first."""

import json
import time
from pathlib import Path
from typing import Any

from termrl.cli.arguments import parse
from termrl.cli.columns import print_columns
from termrl.errors import UserError

DEFAULT_ROOT = "./runs"


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl runs list [run_root=DIR] [--json]",
            "",
            f"Lists the runs under run_root ({DEFAULT_ROOT}), oldest first.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, options=["run_root"], flags=["json"])
    root = Path(given.options.get("run_root", DEFAULT_ROOT)).expanduser()

    from termrl.store import list_runs

    rows = [_row(path) for path in list_runs(root)]
    if "json" in given.flags:
        print(json.dumps(rows, indent=1))
        return 0
    if not rows:
        print(f"There are no runs under {root}: `termrl train config=quickstart` makes one.")
        return 0
    print_columns(
        ("run", "kind", "made", "steps", "model", ""),
        [
            (
                row["run"],
                row.get("kind", ""),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created_at"]))
                if "created_at" in row
                else "",
                str(row.get("steps", "")),
                row.get("model_name", ""),
                row.get("error", ""),
            )
            for row in rows
        ],
    )
    return 0


def _row(path: Path) -> dict[str, Any]:
    """A run that cannot be opened is listed with the reason, so that one bad file hides no other run."""
    from termrl.store import Run

    try:
        with Run.open(path) as run:
            return {
                "run": run.name,
                "path": str(path),
                "kind": run.kind,
                "created_at": run.created_at,
                "steps": len(run.steps()),
                "model_name": str(run.settings.get("model_name", "")),
            }
    except UserError as error:
        return {"run": path.name, "path": str(path), "error": str(error)}
