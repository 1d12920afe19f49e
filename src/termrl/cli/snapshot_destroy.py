"""`termrl snapshot destroy`: removes snapshots and their records."""

import asyncio

from termrl.cli.arguments import parse
from termrl.cli.snapshots import selected


def help_text() -> str:
    return "\n".join(
        ["usage: termrl snapshot destroy KEY|TASK|all", "", "Removes snapshots, at their backend and here."]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["KEY"])

    from termrl.sandbox.backends import Backend
    from termrl.sandbox.snapshots import SnapshotStore
    from termrl.sandbox.snapshotters import snapshotter_for

    records = selected(given.words)
    for record in records:
        asyncio.run(snapshotter_for(Backend(record.backend)).destroy(record.handle))
        SnapshotStore().remove(record)
        print(f"removed {record.key[:12]} ({', '.join(record.tasks)})", flush=True)
    print(f"{len(records)} snapshots removed")
    return 0
