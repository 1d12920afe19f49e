"""The end of an evaluation: outcomes with counts and shares, scores both ways, and where it all is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from termrl.evaluate.markdown import WAYS, score_rows, show_estimate, show_share
from termrl.observe.board import show_seconds
from termrl.observe.table import summary_console


def print_results(results: Mapping[str, Any], written: Path) -> None:
    summary_console().print(draw_results(results, written))


def draw_results(results: Mapping[str, Any], written: Path) -> RenderableType:
    dataset, counts, usage = results["dataset"], results["counts"], results["usage"]
    who = results["checkpoint_url"] or results["model_name"]
    lines: list[RenderableType] = [
        Text(
            f"{results['agent']} with {who} on {dataset['chosen']} of {dataset['tasks']} tasks, "
            f"{results['attempts']} attempt{'s' * (results['attempts'] > 1)} each"
        ),
        _outcomes(counts),
        _scores(results),
    ]
    for name in ("by_category", "by_difficulty"):
        groups = results[name]
        if len(groups) > 1:
            lines.append(_groups(name.replace("_", " "), groups))
    cost = usage["cost_usd"]["total"]
    lines.append(
        Text(
            f"{usage['turns']['total']:,} turns, {usage['prompt_tokens']['total']:,} prompt and "
            f"{usage['sampled_tokens']['total']:,} sampled tokens"
            + (f", ${cost:.2f}" if cost is not None else "")
            + f", {show_seconds(results['seconds']['wall'])}"
        )
    )
    lines.append(Text(f"results: {written}", overflow="fold"))
    if counts["excluded"] or counts["missing"]:
        lines.append(Text("give the same command again to run what is missing or excluded", style="yellow"))
    return Panel(Group(*lines), title=f"{dataset['name']}", title_align="left")


def _outcomes(counts: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("result")
    table.add_column("rollouts", justify="right")
    table.add_column("share", justify="right")
    for row in counts["table"]:
        table.add_row(row["result"], str(row["count"]), show_share(row["share"]))
    if counts["missing"]:
        table.add_row("missing", str(counts["missing"]), "")
    return table


def _scores(results: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    excluded = bool(results["counts"]["excluded"])
    table.add_column("score, 95 % interval")
    table.add_column(WAYS["excluded_left_out"] if excluded else "")
    if excluded:
        table.add_column(WAYS["excluded_as_failed"])
    for label, *values in score_rows(results):
        table.add_row(label, *(Text(value) for value in values[: 2 if excluded else 1]))
    return table


def _groups(title: str, groups: Mapping[str, Any]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(title)
    table.add_column("accuracy")
    for name, group in groups.items():
        table.add_row(name, Text(show_estimate(group["accuracy"])))
    return table
