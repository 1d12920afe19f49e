"""`termrl snapshot inspect`: all that is known of a snapshot, and whether its backend still has it."""

import asyncio
import json

from termrl.cli.arguments import parse
from termrl.cli.snapshots import selected


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl snapshot inspect KEY|TASK",
            "",
            "Prints a snapshot's record as JSON, with `there`: whether the backend still has it.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["KEY"], flags=["json"])

    from termrl.sandbox.backends import Backend
    from termrl.sandbox.snapshotters import snapshotter_for

    described = []
    for record in selected(given.words):
        there = asyncio.run(snapshotter_for(Backend(record.backend)).exists(record.handle))
        described.append({**record.as_json(), "there": there})
    print(json.dumps(described[0] if len(described) == 1 else described, indent=1))
    return 0
