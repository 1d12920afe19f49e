"""`termrl snapshot list`: every snapshot there is a record of."""

import json
import time

from termrl.cli.arguments import parse
from termrl.cli.columns import print_columns


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl snapshot list [environment_type=BACKEND] [--json]",
            "",
            "Lists snapshots: key, backend, size, age, until when, and the tasks that they were made for.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, options=["environment_type"], flags=["json"])

    from termrl.sandbox.snapshots import SnapshotStore

    records = SnapshotStore().all(given.options.get("environment_type"))
    if "json" in given.flags:
        print(json.dumps([record.as_json() for record in records], indent=1))
        return 0
    rows = [
        [
            record.key[:12],
            record.backend,
            "" if record.size is None else f"{record.size / 1e6:.1f} MB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(record.created)),
            _until(record.expires, record.expired),
            ", ".join(record.tasks),
        ]
        for record in records
    ]
    if rows:
        print_columns(("key", "backend", "size", "created", "until", "tasks"), rows)
    print(f"{len(rows)} snapshots")
    return 0


def _until(expires: float | None, expired: bool) -> str:
    if expires is None:
        return "removed"
    return "expired" if expired else time.strftime("%Y-%m-%d %H:%M", time.localtime(expires))
