"""`termrl sandbox list`: what runs have open on this host, and what a crash left behind."""

import json

from termrl.cli.arguments import parse
from termrl.cli.columns import print_columns


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl sandbox list [--json]",
            "",
            "Lists every sandbox, control group, half-built layer, container, network and volume that",
            "carries a run's label. What belongs to a process that is gone is `left over`:",
            "`termrl sandbox reap` removes it.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, flags=["json"])

    from termrl.sandbox.leftovers import find

    found = find()
    rows = [
        {
            "kind": each.kind,
            "name": each.name,
            "run": each.label.run,
            "process": each.label.owner.partition("-")[0],
            "backend": each.backend,
            "left_over": each.left_over,
        }
        for each in found
    ]
    if "json" in given.flags:
        print(json.dumps(rows, indent=1))
        return 0
    if rows:
        print_columns(
            ("kind", "name", "run", "process", "backend", ""),
            [
                [
                    *(str(row[key]) for key in ("kind", "name", "run", "process", "backend")),
                    _state(row["left_over"]),
                ]
                for row in rows
            ],
        )
    left = sum(bool(row["left_over"]) for row in rows)
    print(
        f"{len(rows) - left} in use, {left} left over"
        + ("; `termrl sandbox reap` removes them." if left else ".")
    )
    return 0


def _state(left_over: object) -> str:
    return "left over" if left_over else "in use"
