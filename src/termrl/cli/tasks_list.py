"""`termrl tasks list`: the tasks of a dataset, with what each asks for, and totals."""

import json
from collections import Counter

from termrl.cli.arguments import parse
from termrl.cli.columns import print_columns
from termrl.cli.fetching import tell

DEFAULT_DATASET = "termrl/basics"
COLUMNS = ("task", "difficulty", "category", "agent", "verifier", "resources", "image", "network", "size")


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl tasks list [DATASET] [on_bad_task=error|skip] [--json]",
            "",
            "Lists the tasks of a dataset: name, difficulty, category, time-outs of agent and verifier,",
            "resources, image, network and size, and totals. DATASET is",
            f"  a built-in set       {DEFAULT_DATASET} (a part: {DEFAULT_DATASET}:held_out), terminal-mini",
            "  a path               one task, a tree of any depth, or a list file (`termrl tasks split`)",
            "  a name               terminal-bench@2.0, swebench-verified@1.0, org/name@ref; fetched once",
            "  a registry.json      path or URL, and #NAME@VERSION",
            "  a git repository     https://host/org/repo@COMMIT, and #DIRECTORY",
            "  Terminal-Bench 1     terminal-bench-core==0.1.1, or a directory of such tasks",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["DATASET"], options=["dataset", "on_bad_task"], flags=["json"])
    dataset = given.options.get("dataset") or (given.words[0] if given.words else DEFAULT_DATASET)

    from termrl.cli.choices import on_bad_task
    from termrl.tasks.datasets import load_dataset
    from termrl.tasks.overview import human_size, overview

    found = load_dataset(dataset, on_bad_task=on_bad_task(given.options), told=tell)
    rows = [overview(task) for task in found.tasks]
    if "json" in given.flags:
        skipped = [{"path": str(bad.path), "reason": bad.reason} for bad in found.skipped]
        print(
            json.dumps(
                {"dataset": dataset, "tasks": [r.as_dict() for r in rows], "skipped": skipped}, indent=1
            )
        )
        return 0
    print_columns(COLUMNS, [row.cells() for row in rows])
    difficulties = Counter(row.difficulty or "unknown" for row in rows)
    mixture = ", ".join(f"{count} {name}" for name, count in difficulties.most_common())
    print(f"{len(rows)} tasks in {dataset}, {human_size(sum(row.size for row in rows))}: {mixture}")
    for bad in found.skipped:
        print(f"left out: {bad.reason}")
    return 0
