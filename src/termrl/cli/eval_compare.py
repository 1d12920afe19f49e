"""`termrl eval compare`: evaluations of the same tasks, paired by task, as a table and a picture."""

import json
from pathlib import Path
from typing import Any

from termrl.cli.arguments import UsageError, parse
from termrl.cli.runs_list import DEFAULT_ROOT
from termrl.errors import UserError

MOST = 10
PICTURE = "comparison.png"


class DifferentDatasetsError(UserError):
    """Evaluations of datasets that are not the same."""


class NothingInCommonError(UserError):
    """Evaluations that have no task in common."""


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl eval compare A B [C ...] [picture=FILE] [excluded=left_out|failed]",
            "                           [run_root=DIR] [--different-datasets] [--json]",
            "",
            "Compares evaluations with the first of them, task by task: the difference in pass@1 with its",
            "95 % interval, how likely it is by chance (McNemar's test with one attempt a task, else a",
            "permutation test), and which tasks flipped. Each is a run, a results.json, or its directory.",
            f"The picture goes to {PICTURE} unless named otherwise; picture=none leaves it out.",
            "Evaluations of different datasets are refused unless --different-datasets is given: then the",
            "tasks they have in common are compared.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(
        arguments,
        words=["EVALUATION"] * MOST,
        options=["run_root", "picture", "excluded"],
        flags=["json", "different_datasets"],
    )
    if len(given.words) < 2:
        raise UsageError("Name two evaluations or more to compare: `termrl eval compare A B`.")
    excluded = given.options.get("excluded", "left_out")
    if excluded not in ("left_out", "failed"):
        raise UsageError(f"excluded is '{excluded}', which is not left_out or failed.")
    root = Path(given.options.get("run_root", DEFAULT_ROOT)).expanduser()

    from termrl.evaluate.compare import compare
    from termrl.evaluate.results import passed_by_task

    results = {word: read_evaluation(word, root) for word in given.words}
    first, *others = given.words
    if "different_datasets" not in given.flags:
        _require_same_dataset(results)
    tables = {
        word: passed_by_task(found, excluded_as_failed=excluded == "failed")
        for word, found in results.items()
    }
    comparisons = {}
    for other in others:
        try:
            comparisons[other] = compare(tables[first], tables[other])
        except ValueError:
            raise NothingInCommonError(
                f"{first} and {other} have no scored task in common: there is nothing to pair."
            ) from None
    if "json" in given.flags:
        report = {"first": first, "excluded": excluded}
        print(
            json.dumps({**report, "comparisons": {k: c.to_dict() for k, c in comparisons.items()}}, indent=1)
        )
        return 0

    from termrl.observe.comparison import draw_comparisons, print_comparisons

    print_comparisons(first, comparisons)
    picture = given.options.get("picture", PICTURE)
    if picture != "none":
        draw_comparisons(first, comparisons, Path(picture).expanduser())
        print(f"picture: {picture}")
    return 0


def read_evaluation(word: str, root: Path) -> dict[str, Any]:
    """The results of a run, of a directory, or of a results file."""
    from termrl.evaluate.results import RESULTS, read_results
    from termrl.store import find_run

    path = Path(word).expanduser()
    if path.is_file() or (path / RESULTS).is_file():
        return read_results(path)
    return read_results(find_run(word, root))


def _require_same_dataset(results: dict[str, dict[str, Any]]) -> None:
    first, *others = results
    for other in others:
        one, two = results[first]["dataset"], results[other]["dataset"]
        if one["digest"] != two["digest"]:
            raise DifferentDatasetsError(
                f"{first} is of {one['name']} ({one['digest']}) and {other} of {two['name']} "
                f"({two['digest']}): their tasks are not the same, byte for byte; "
                "--different-datasets compares the tasks of the same name all the same."
            )
