"""`termrl tasks list`: the tasks of a dataset."""

import json
from typing import Any

from termrl.cli.arguments import parse
from termrl.cli.columns import print_columns

DEFAULT_DATASET = "termrl/basics"


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl tasks list [DATASET] [--json]",
            "",
            "Lists the tasks of a dataset: a directory of Harbor tasks, or a built-in set",
            f"({DEFAULT_DATASET}, or one of its splits such as {DEFAULT_DATASET}:held_out).",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["DATASET"], options=["dataset"], flags=["json"])
    dataset = given.options.get("dataset") or (given.words[0] if given.words else DEFAULT_DATASET)

    from termrl.tasks import load_harbor_tasks

    rows = [
        {
            "task_name": task.task_name,
            "family": _text(task.config.metadata, "family", "category"),
            "difficulty": _text(task.config.metadata, "difficulty"),
            "instruction": task.instruction,
            "task_dir": str(task.task_dir),
        }
        for task in load_harbor_tasks(dataset)
    ]
    if "json" in given.flags:
        print(json.dumps(rows, indent=1))
        return 0
    columns = ("task_name", "family", "difficulty", "instruction")
    print_columns(
        ("task", "family", "difficulty", "instruction"),
        [[" ".join(row[column].split()) for column in columns] for row in rows],
    )
    print(f"{len(rows)} tasks in {dataset}")
    return 0


def _text(metadata: dict[str, Any], *names: str) -> str:
    return next((str(metadata[name]) for name in names if name in metadata), "")
