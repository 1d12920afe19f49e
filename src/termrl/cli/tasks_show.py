"""`termrl tasks show`: a dataset as a whole, or one of its tasks."""

import json
from collections import Counter
from difflib import get_close_matches
from os.path import commonpath
from pathlib import Path
from typing import Any

from termrl.cli.arguments import UsageError, parse
from termrl.cli.fetching import tell


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl tasks show DATASET [TASK] [on_bad_task=error|skip] [--json]",
            "",
            "Shows what a dataset is made of: where it came from, how many tasks of which difficulty and",
            "category, their time-outs, resources and images. With TASK, that task and its instruction.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["DATASET", "TASK"], options=["on_bad_task"], flags=["json"])
    if not given.words:
        raise UsageError("Say which dataset to show: termrl tasks show DATASET.")

    from termrl.cli.choices import on_bad_task
    from termrl.tasks.datasets import load_dataset
    from termrl.tasks.overview import overview

    found = load_dataset(given.words[0], on_bad_task=on_bad_task(given.options), told=tell)
    rows = {task.task_name: overview(task) for task in found.tasks}
    if len(given.words) == 1:
        shown = _dataset(given.words[0], list(rows.values()), len(found.skipped))
    elif (name := given.words[1]) in rows:
        shown = rows[name].as_dict()
    else:
        close = get_close_matches(name, rows, n=1)
        hint = f"did you mean {close[0]}?" if close else "`termrl tasks list` lists them."
        raise UsageError(f"{given.words[0]} has no task {name}: {hint}")
    if "json" in given.flags:
        print(json.dumps(shown, indent=1))
        return 0
    for key, value in shown.items():
        text = (
            ", ".join(f"{count} {name}" for name, count in value.items())
            if isinstance(value, dict)
            else value
        )
        if key == "instruction":
            print(f"\n{text}")
        else:
            print(f"{key:<22}{'-' if text is None or text == '' else text}")
    return 0


def _dataset(name: str, rows: list[Any], skipped: int) -> dict[str, Any]:
    from termrl.tasks.errors import TaskError
    from termrl.tasks.overview import human_size
    from termrl.tasks.records import find_record
    from termrl.tasks.references import read_reference

    try:
        record = find_record(str(read_reference(name)))
    except TaskError:
        record = None
    timeouts = [row.agent_timeout_sec for row in rows if row.agent_timeout_sec is not None]
    return {
        "dataset": name,
        "source": record.source if record else commonpath([Path(row.task_dir).parent for row in rows]),
        "version": record.version if record else "",
        "tasks": len(rows),
        "left_out": skipped,
        "difficulties": dict(Counter(row.difficulty or "unknown" for row in rows).most_common()),
        "categories": dict(Counter(row.category or "unknown" for row in rows).most_common()),
        "networks": dict(Counter(row.network for row in rows).most_common()),
        "images": len({row.image for row in rows}),
        "agent_timeouts": f"{min(timeouts):g} to {max(timeouts):g} s" if timeouts else "",
        "most_memory_mb": max((row.memory_mb or 0 for row in rows), default=0) or "",
        "most_cpus": max((row.cpus or 0 for row in rows), default=0) or "",
        "files": sum(row.files for row in rows),
        "size": human_size(sum(row.size for row in rows)),
    }
