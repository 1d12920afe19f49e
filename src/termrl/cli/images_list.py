"""`termrl images list`: the root file systems that the local sandbox knows by name."""

import json
import time
from dataclasses import asdict

from termrl.cli.arguments import parse
from termrl.cli.columns import print_columns


def help_text() -> str:
    return "\n".join(
        ["usage: termrl images list [--json]", "", "Lists what `termrl images import` has imported."]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, flags=["json"])

    from termrl.sandbox.images import ImageStore
    from termrl.sandbox.layers import default_layers_dir

    records = ImageStore(default_layers_dir()).records()
    if "json" in given.flags:
        print(json.dumps([asdict(record) for record in records], indent=1))
        return 0
    rows = [
        [
            record.reference,
            f"{record.size / 1e6:.0f} MB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(record.imported)),
            record.source,
        ]
        for record in records
    ]
    print_columns(("image", "size", "imported", "from"), [["termrl/host", "", "", "this host's /usr"], *rows])
    return 0
