"""`termrl snapshot renew`: lets snapshots live longer."""

from termrl.cli.arguments import parse
from termrl.cli.snapshots import hours, selected


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl snapshot renew KEY|TASK|all [ttl_hours=none]",
            "",
            "Sets how long snapshots are good for, from now on; without ttl_hours, until they are removed.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["KEY"], options=["ttl_hours"])
    ttl = hours(given.options.get("ttl_hours"))

    from termrl.sandbox.snapshots import SnapshotStore

    records = selected(given.words)
    for record in records:
        SnapshotStore().put(record.renewed(ttl))
    print(f"{len(records)} snapshots renewed")
    return 0
