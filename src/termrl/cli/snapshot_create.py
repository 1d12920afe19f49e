"""`termrl snapshot create`: pays for cold environments once."""

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from termrl.cli.arguments import UsageError, parse, whole_number
from termrl.cli.snapshots import BACKEND_OPTIONS, backend_of, chosen_tasks, hours

if TYPE_CHECKING:
    from termrl.sandbox.freezing import Built

_OPTIONS = (*BACKEND_OPTIONS, "agent", "task_indices", "workers", "ttl_hours", "dataset")


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl snapshot create DATASET [environment_type=local] [agent=terminus-2]",
            "           [task_indices=0,3,5-8] [workers=4] [ttl_hours=none] [environment_kwargs=..]",
            "           [base_images=..] [--json]",
            "",
            "Builds the environment of every task (image, Dockerfile, the agent's tools) and keeps it, so",
            "that `train` and `eval` start from it: local, docker, podman, daytona and modal have snapshots.",
            "What is there already is not built again; a changed file or image is. A build that fails is",
            "reported and stops no other: run the same command again for what is missing.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["DATASET"], options=_OPTIONS, flags=["json"])
    dataset = given.options.get("dataset") or (given.words[0] if given.words else None)
    if dataset is None:
        raise UsageError(
            "`termrl snapshot create` takes a DATASET: a directory, a registry name or a built-in set."
        )
    as_json = "json" in given.flags
    workers = whole_number(given.options, "workers", 4)
    ttl = hours(given.options.get("ttl_hours"))
    if not as_json:
        print(f"snapshots of {dataset}", flush=True)

    from termrl.agents.tools import tools_of
    from termrl.sandbox.freezing import freeze
    from termrl.sandbox.labels import labelled_run
    from termrl.sandbox.readiness import require_backend

    backend = backend_of(given.options)
    tools = tools_of(given.options.get("agent", "terminus-2"), backend.environment_type)
    tasks = chosen_tasks(dataset, given.options.get("task_indices"))
    require_backend(backend)

    def tell(built: "Built") -> None:
        if not as_json:
            print(f"  {built.state:<7} {built.task_name} ({built.seconds:.1f} s)", flush=True)

    with labelled_run("snapshot"):
        results = asyncio.run(
            freeze(tasks, backend, tools=tools, workers=max(1, workers), ttl_hours=ttl, done=tell)
        )
    failed = [built for built in results if built.state == "failed"]
    if as_json:
        print(json.dumps([asdict(built) for built in results], indent=1))
        return 1 if failed else 0
    for built in failed:
        print(f"{built.task_name} failed:\n{built.detail}")
    counts = {state: sum(built.state == state for built in results) for state in ("built", "shared", "there")}
    print(", ".join(f"{count} {state}" for state, count in counts.items()) + f", {len(failed)} failed.")
    return 1 if failed else 0
