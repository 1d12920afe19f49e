"""`termrl runs show`: what a run reached, as the table at its end or as JSON."""

import json
from pathlib import Path

from termrl.cli.arguments import UsageError, parse
from termrl.cli.runs_list import DEFAULT_ROOT


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl runs show RUN [run_root=DIR] [--settings] [--json]",
            "",
            "Shows held-out solve rates, time per phase and tokens of a run (an evaluation: its results):",
            f"its name, the beginning of it, its path, or `last`. run_root is {DEFAULT_ROOT} unless given.",
            "--settings also shows the settings it was made with.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["RUN"], options=["run_root"], flags=["json", "settings"])
    if not given.words:
        raise UsageError("Name the run to show: `termrl runs show last`, or one of `termrl runs list`.")
    root = Path(given.options.get("run_root", DEFAULT_ROOT)).expanduser()

    from termrl.cli.summary import is_evaluation, summary_of
    from termrl.settings import flatten
    from termrl.settings.values import show_value
    from termrl.store import Run, find_run

    path = find_run(given.words[0], root)
    if is_evaluation(path):
        return _show_evaluation(path, as_json="json" in given.flags)
    summary = summary_of(path)
    if "settings" in given.flags:
        with Run.open(path) as opened:
            summary["settings"] = opened.settings
    if "json" in given.flags:
        print(json.dumps(summary, indent=1))
        return 0

    from termrl.observe.table import print_summary

    for name, value in flatten(summary.get("settings", {})).items():
        print(f"{name}={show_value(value)}")
    print_summary(summary)
    return 0


def _show_evaluation(path: Path, *, as_json: bool) -> int:
    from termrl.evaluate.results import RESULTS, read_results

    results = read_results(path)
    if as_json:
        print(json.dumps(results, indent=1))
        return 0

    from termrl.observe.panel import print_results

    print_results(results, path / RESULTS)
    return 0
