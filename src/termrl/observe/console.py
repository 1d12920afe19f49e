"""The console: how a run shows that it lives.

`open_console` gives a `Progress`: drawn in place where a person watches a terminal, plain lines where
the output is a file or a pipe. A line comes at once with every phase and then every few seconds,
whether or not anything moved.
"""

import sys
import threading
from typing import TextIO

from termrl.learn.progress import Progress
from termrl.observe.board import Board, show_seconds

LINE_EVERY = 5.0


def open_console(stream: TextIO | None = None, *, keep_notes: bool = False) -> Progress:
    """The console that fits the stream (standard output); where it is live, notes pass unless kept."""
    stream = stream or sys.stdout
    if stream.isatty():
        from termrl.observe.live import LiveConsole, StreamingConsole

        return StreamingConsole(stream) if keep_notes else LiveConsole(stream)
    return LineConsole(stream)


class LineConsole:
    """A line when a phase begins or something is noted, and every `line_every` seconds while it lasts."""

    def __init__(self, stream: TextIO, line_every: float = LINE_EVERY) -> None:
        self._stream = stream
        self._board = Board()
        self._write_lock = threading.Lock()
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._tick, args=(line_every,), daemon=True)
        self._ticker.start()

    def phase(self, name: str, total: int | None = None) -> None:
        self._finish_phase()
        self._board.phase(name, total)
        self._print(f"{name}{f' (0 of {total})' if total else ''}")

    def advance(self, n: int = 1, **numbers: float) -> None:
        self._board.done += n
        self._board.figures.update(numbers)

    def numbers(self, **numbers: float) -> None:
        self._board.figures.update(numbers)

    def note(self, text: str) -> None:
        self._print(f"  {text}")

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._finish_phase()
            self._ticker.join()

    def _finish_phase(self) -> None:
        if self._board.name:
            self._print(f"{self._status()} · after {show_seconds(self._board.phase_seconds)}")

    def _tick(self, line_every: float) -> None:
        while not self._closed.wait(line_every):
            if self._board.name:
                left = self._board.seconds_left
                self._print(self._status() + (f" · {show_seconds(left)} left" if left is not None else ""))

    def _status(self) -> str:
        board = self._board
        count = f" {board.done} of {board.total}" if board.total else (f" {board.done}" if board.done else "")
        return " · ".join([f"{board.name}{count}", *board.shown_figures()])

    def _print(self, text: str) -> None:
        with self._write_lock:
            print(f"[{show_seconds(self._board.seconds):>5}] {text}", file=self._stream, flush=True)
