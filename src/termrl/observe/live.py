"""The console where a person watches: phases done, the one under way with its bar, figures, last rollouts."""

from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from termrl.observe.board import Board, show_seconds


class LiveConsole:
    """A `Progress` drawn in place, four times a second."""

    def __init__(self, stream: TextIO) -> None:
        self._board = Board()
        self._live = Live(
            console=Console(file=stream, highlight=False),
            get_renderable=lambda: draw(self._board),
            refresh_per_second=4,
        )
        self._live.start()

    def phase(self, name: str, total: int | None = None) -> None:
        self._board.phase(name, total)
        self._live.refresh()

    def advance(self, n: int = 1, **numbers: float) -> None:
        self._board.done += n
        self._board.figures.update(numbers)

    def numbers(self, **numbers: float) -> None:
        self._board.figures.update(numbers)

    def note(self, text: str) -> None:
        self._board.notes.append(text)

    def close(self) -> None:
        self._board.notes.clear()
        self._live.stop()


class StreamingConsole(LiveConsole):
    """The same, with every note left on the screen above it."""

    def note(self, text: str) -> None:
        self._live.console.print(Text(text), soft_wrap=True)


def draw(board: Board) -> RenderableType:
    """The board as it stands."""
    lines: list[RenderableType] = [
        Text.assemble((" ✓ ", "green"), f"{name}  ", (show_seconds(seconds), "dim"))
        for name, seconds in board.finished
    ]
    if board.name:
        lines.append(_phase_line(board))
        if board.figures:
            lines.append(Text("   " + "  ·  ".join(board.shown_figures()), style="cyan"))
        lines += [Text(f"   {note}", style="dim", no_wrap=True, overflow="ellipsis") for note in board.notes]
    return Group(*lines)


def _phase_line(board: Board) -> RenderableType:
    line = Table.grid(padding=(0, 1))
    bar = ProgressBar(
        total=board.total,
        completed=board.done,
        width=30,
        pulse=board.total is None,
        animation_time=board.seconds,
    )
    count = f"{board.done} of {board.total}" if board.total else ""
    left = board.seconds_left
    times = show_seconds(board.phase_seconds) + (f", {show_seconds(left)} left" if left is not None else "")
    line.add_row(
        Text(" ▸", style="bold yellow"), Text(board.name, style="bold"), bar, count, Text(times, "dim")
    )
    return line
