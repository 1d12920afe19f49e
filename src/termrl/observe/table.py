"""The table at the end of a run, drawn from its summary (see `termrl.evaluate.summary`).

Of the summary it reads `held_out`, `held_out_demonstrated`, `held_out_undemonstrated` and
`held_out_families`, each stage -> {solve_rate, low, high, n, excluded}; `seconds` and `tokens`, name ->
number; `run`, `steps`; and `picture`, the path of the learning curve. What is missing is not shown.
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
PARTS = ("held_out_demonstrated", "held_out_undemonstrated")
PHASES = {
    "eval-base": "evaluation of the base model",
    "warmup": "warm-up",
    "eval-after_warmup": "evaluation after warm-up",
    "train": "RL",
    "eval-after_rl": "evaluation after RL",
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
    if _shown_rows(summary):
        parts += [_solve_rates(summary), ""]
    if summary.get("seconds"):
        times = {PHASES.get(name, name): seconds for name, seconds in summary["seconds"].items()}
        parts.append(_line("time", [f"{name} {show_seconds(seconds)}" for name, seconds in times.items()]))
    if summary.get("tokens"):
        parts.append(_line("tokens", [f"{name} {n:,}" for name, n in summary["tokens"].items()]))
    if (summary.get("spent") or {}).get("cost"):
        parts.append(_line("cost", [f"${summary['spent']['cost']:.2f}"]))
    if summary.get("picture"):
        parts.append(_line("curve", [str(summary["picture"])]))
    parts += ["", Text("What to type next", style="bold")]
    commands = next_commands(summary)
    width = max(len(command) for command, _ in commands)
    parts += [Text.assemble(f"  {command:<{width}}", (f"   {why}", "dim")) for command, why in commands]
    return Group(*parts)


def next_commands(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Three commands worth typing after this run, each with what it does."""
    run = summary.get("run", "last")
    return [
        (f"termrl runs show {run} --json", "this table, for machines"),
        (
            f"termrl train run_name={run} max_steps={2 * max(summary.get('steps', 0), 1)}",
            "go on from here, twice as far",
        ),
        (
            "termrl train dataset=TASKS model_name=MODEL base_url=URL",
            "your tasks, a model on a Tinker server",
        ),
    ]


def show_rate(rate: Mapping[str, Any] | None) -> str:
    if not rate or not rate["n"]:
        return "–"
    excluded = f", {rate['excluded']} excluded" if rate.get("excluded") else ""
    low, high = 100 * rate["low"], 100 * rate["high"]
    return f"{rate['solve_rate']:.0%}  [{low:.0f}, {high:.0f}]  n={rate['n']}{excluded}"


def _shown_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """The rows that have a rate; the two parts of the held-out tasks only where there are two."""
    with_rates = [
        row for row in ROWS if any(rate and rate["n"] for rate in (summary.get(row) or {}).values())
    ]
    if not set(PARTS) <= set(with_rates):
        with_rates = [row for row in with_rates if row not in PARTS]
    return {row: ROWS[row] for row in with_rates}


def _solve_rates(summary: Mapping[str, Any]) -> Table:
    rows = _shown_rows(summary)
    stages = {
        stage: label
        for stage, label in STAGES.items()
        if any((summary[row].get(stage) or {}).get("n") for row in rows)
    }
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


def _line(label: str, parts: list[str]) -> Text:
    return Text.assemble((f"{label:<9}", "bold"), "  ·  ".join(parts))
