"""`termrl sandbox reap`: removes what runs that are gone left behind, and nothing else."""

import json

from termrl.cli.arguments import parse


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl sandbox reap [--json]",
            "",
            "Removes sandboxes, control groups, half-built layers, containers, networks and volumes whose",
            "run's process is gone. What a living run has open stays, and everything without a run's label.",
            "Exits with 1 if something could not be removed.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, flags=["json"])

    from termrl.sandbox.leftovers import find, reap

    removed = reap()
    stuck = [each for each in find() if each.left_over]
    if "json" in given.flags:
        described = {
            "removed": [{"kind": each.kind, "name": each.name, "run": each.label.run} for each in removed],
            "stuck": [{"kind": each.kind, "name": each.name, "run": each.label.run} for each in stuck],
        }
        print(json.dumps(described, indent=1))
        return 1 if stuck else 0
    for each in removed:
        print(f"removed {each.kind} {each.name} of run {each.label.run}")
    for each in stuck:
        print(f"could not remove {each.kind} {each.name} of run {each.label.run}")
    print(f"{len(removed)} removed, {len(stuck)} could not be.")
    return 1 if stuck else 0
