"""`termrl snapshot sync`: brings records and what the backend has into step."""

import asyncio

from termrl.cli.arguments import parse
from termrl.cli.snapshots import BACKEND_OPTIONS, backend_of


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl snapshot sync [environment_type=local]",
            "",
            "Drops records whose snapshot is gone; removes snapshots that are expired or that no record",
            "knows.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, options=BACKEND_OPTIONS)

    from termrl.sandbox.freezing import synchronize

    dropped, removed = asyncio.run(synchronize(backend_of(given.options)))
    print(f"{len(dropped)} records dropped, {len(removed)} snapshots removed")
    return 0
