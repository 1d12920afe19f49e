"""The table at the end of a run, from the summary that `termrl runs show RUN --json` prints.

    run, path, kind, status, model_name       texts; status is "done", "stopped" or "running"
    held_out                                  solve rate on held-out tasks, by stage:
        base, after_warmup, after_rl            each {solve_rate, low, high, n} or null; low and high
                                                bound the 95 % interval, n counts what was scored
    held_out_demonstrated                     of those, the families with demonstrations; same shape
    held_out_undemonstrated                   and the families without; same shape
    held_out_families                         families that training never saw; same shape
    seconds                                   {phase: seconds}, in order
    tokens                                    {prompt, sampled, trained}
    rollouts                                  {n, scored, excluded: {outcome: count}}
    curve                                     [{step, solve_rate, reward, n}] of the training rollouts
    picture                                   path of the learning curve, or null

What is null or left out is not shown.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from termrl.observe.board import show_seconds

STAGES = {"base": "base model", "after_warmup": "after warm-up", "after_rl": "after RL"}
ROWS = {
    "held_out": "held-out tasks",
    "held_out_demonstrated": "  families with demonstrations",
    "held_out_undemonstrated": "  families without",
    "held_out_families": "held-out families",
}


def print_summary(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """The whole end of a run: solve rates, where time and tokens went, what to type next."""
    console = console or summary_console()
    console.print(draw_summary(summary))


def summary_console() -> Console:
    """Standard output; outside of a terminal wide enough that no row is broken."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=110)


def draw_summary(summary: Mapping[str, Any]) -> RenderableType:
    parts: list[RenderableType] = []
    if any(summary.get(row) for row in ROWS):
        parts += [_solve_rates(summary), ""]
    if summary.get("seconds"):
        parts.append(_line("time", [f"{name} {show_seconds(s)}" for name, s in summary["seconds"].items()]))
    if summary.get("tokens"):
        parts.append(_line("tokens", [f"{name} {n:,}" for name, n in summary["tokens"].items()]))
    if summary.get("rollouts"):
        parts.append(_line("rollouts", _rollouts(summary["rollouts"])))
    if summary.get("picture"):
        parts.append(_line("curve", [str(summary["picture"])]))
    parts += ["", Text("What to type next", style="bold")]
    parts += [
        Text.assemble(f"  {command}", (f"   # {why}", "dim")) for command, why in next_commands(summary)
    ]
    return Group(*parts)


def next_commands(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Three commands worth typing after this run, each with what it does."""
    run = summary.get("run", "last")
    if summary.get("status") != "done":
        first = (f"termrl train run_name={run}", "go on where it stopped")
    else:
        first = ("termrl train config=quickstart seed=1", "the same with other random draws")
    return [
        (f"termrl runs show {run} --json", "this table, for machines"),
        first,
        (
            "termrl train dataset=TASKS model_name=MODEL base_url=URL",
            "a real run: your tasks, a model on a Tinker server",
        ),
    ]


def show_rate(rate: Mapping[str, Any] | None) -> str:
    if not rate:
        return "–"
    low, high = 100 * rate["low"], 100 * rate["high"]
    return f"{rate['solve_rate']:.0%}  [{low:.0f}, {high:.0f}]  n={rate['n']}"


def _solve_rates(summary: Mapping[str, Any]) -> Table:
    rows = {row: label for row, label in ROWS.items() if summary.get(row)}
    stages = {stage: label for stage, label in STAGES.items() if any(summary[row].get(stage) for row in rows)}
    table = Table(title="Solve rate, with its 95 % interval", title_justify="left", title_style="bold")
    table.add_column("")
    for label in stages.values():
        table.add_column(label, justify="right")
    for row, label in rows.items():
        table.add_row(
            Text(label),
            *(Text(show_rate(summary[row].get(stage))) for stage in stages),
            style="bold" if row == "held_out" else "",
        )
    return table


def _rollouts(rollouts: Mapping[str, Any]) -> list[str]:
    excluded = rollouts.get("excluded") or {}
    reasons = ", ".join(f"{count} {name}" for name, count in excluded.items())
    return [
        f"{rollouts['n']} finished",
        f"{rollouts['scored']} scored",
        f"{sum(excluded.values())} excluded{f' ({reasons})' if reasons else ''}",
    ]


def _line(label: str, parts: list[str]) -> Text:
    return Text.assemble((f"{label:<9}", "bold"), "  ·  ".join(parts))
