"""Comparisons of evaluations, as a table on the console and as a picture."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from termrl.errors import UserError
from termrl.evaluate.compare import Comparison, Flip
from termrl.observe.table import summary_console

FLIPS_SHOWN = 15
FLIPS_DRAWN = 60


class PictureError(UserError):
    """The picture could not be written where it was asked for."""


def print_comparisons(first: str, comparisons: Mapping[str, Comparison]) -> None:
    console = summary_console()
    table = Table(title=f"Compared with {first}, by task", title_justify="left", title_style="bold")
    for header in ("", first, "pass@1", "difference, 95 % interval", "p", "tasks", "gained", "lost"):
        table.add_column(header, justify="left" if not header else "right")
    for name, one in comparisons.items():
        table.add_row(
            Text(name),
            f"{one.first:.1%}",
            f"{one.second:.1%}",
            show_difference(one),
            f"{one.p_value:.3g}",
            f"{one.tasks}" + (f" ({one.unpaired} unpaired)" if one.unpaired else ""),
            str(len(one.gained)),
            str(len(one.lost)),
        )
    console.print(table)
    for name, one in comparisons.items():
        console.print(Text(f"{name}: {one.test}", style="dim"))
        _print_flips(console, "gained", one.gained)
        _print_flips(console, "lost", one.lost)


def show_difference(one: Comparison) -> str:
    return f"{100 * one.difference:+.1f} points [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"


def _print_flips(console: Console, what: str, flips: tuple[Flip, ...]) -> None:
    for flip in flips[:FLIPS_SHOWN]:
        console.print(Text(f"  {what}  {flip.task}  {flip.before:.0%} → {flip.after:.0%}"))
    if len(flips) > FLIPS_SHOWN:
        console.print(Text(f"  {what}  and {len(flips) - FLIPS_SHOWN} more; --json lists them all"))


def draw_comparisons(first: str, comparisons: Mapping[str, Comparison], path: Path) -> None:
    """Above, each difference with its interval; below, the tasks that flipped, most changed first."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    moved = {name: [*one.gained, *reversed(one.lost)] for name, one in comparisons.items()}
    rows = max([len(flips) for flips in moved.values()] + [1])
    height = max(2.0, 0.22 * min(rows, FLIPS_DRAWN))
    figure = Figure(figsize=(5.5 * len(comparisons) + 2, 2.5 + height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(2, len(comparisons), squeeze=False, height_ratios=[1.2, height])
    for column, (name, one) in enumerate(comparisons.items()):
        top, bottom = grid[0][column], grid[1][column]
        top.errorbar(
            [100 * one.difference],
            [0],
            xerr=[[100 * (one.difference - one.low)], [100 * (one.high - one.difference)]],
            fmt="o",
            color="tab:blue",
            capsize=4,
        )
        top.axvline(0, color="grey", linewidth=0.8)
        top.set_yticks([])
        top.set_xlabel("points of pass@1, 95 % interval")
        top.set_title(
            f"{name} less {first}\np = {one.p_value:.3g} ({one.test}), {one.tasks} tasks", fontsize=9
        )
        flips = moved[name][:FLIPS_DRAWN]
        changes = [100 * (flip.after - flip.before) for flip in flips]
        colours = ["tab:green" if change > 0 else "tab:red" for change in changes]
        bottom.barh(range(len(flips)), changes, color=colours)
        bottom.set_yticks(range(len(flips)), [flip.task for flip in flips], fontsize=7)
        bottom.invert_yaxis()
        bottom.axvline(0, color="grey", linewidth=0.8)
        bottom.set_xlabel("change of a task's pass rate, points")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise PictureError(f"The picture can't be written to {path}: {error.strerror or error}.") from error
