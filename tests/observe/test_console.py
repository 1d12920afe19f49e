"""The console: a line at once, a line every few seconds, and a drawing that keeps to its width."""

import io
import re
import time

from rich.console import Console

from termrl.learn.progress import Progress
from termrl.observe.board import Board, show_figure, show_seconds
from termrl.observe.console import LineConsole, open_console
from termrl.observe.live import LiveConsole, StreamingConsole, draw


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def work(console: Progress) -> None:
    console.phase("warm-up", 3)
    for _ in range(3):
        console.advance(loss=0.5)
    console.phase("reinforcement learning", 10)
    console.advance(2, reward=0.25, solve_rate=0.5)
    console.numbers(tokens_per_second=1234.5, sandboxes=7)
    console.note("copy-file-3 solved in 2 turns")


def test_a_pipe_gets_plain_lines_and_a_terminal_gets_a_drawing() -> None:
    plain, drawn = open_console(io.StringIO()), open_console(Terminal())
    plain.close()
    drawn.close()
    assert isinstance(plain, LineConsole)
    assert isinstance(drawn, LiveConsole)


def test_plain_lines_tell_each_phase_its_progress_and_its_figures() -> None:
    stream = io.StringIO()
    console = LineConsole(stream)
    work(console)
    console.close()
    lines = [line.partition("] ")[2] for line in stream.getvalue().splitlines()]
    assert lines == [
        "warm-up (0 of 3)",
        "warm-up 3 of 3 · loss 0.5 · after 0:00",
        "reinforcement learning (0 of 10)",
        "  copy-file-3 solved in 2 turns",
        "reinforcement learning 2 of 10 · reward 0.25 · solved 50% · 1,234 tokens/s · 7 sandboxes"
        " · after 0:00",
    ]
    assert "\x1b" not in stream.getvalue()


def test_plain_lines_go_on_while_nothing_moves_and_stop_when_closed() -> None:
    stream = io.StringIO()
    console = LineConsole(stream, line_every=0.05)
    console.phase("compiling")
    deadline = time.monotonic() + 10
    while stream.getvalue().count("compiling") < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    console.close()
    console.close()
    text = stream.getvalue()
    time.sleep(0.15)
    assert stream.getvalue() == text


def test_the_drawing_shows_phases_done_the_bar_the_figures_and_the_last_notes() -> None:
    now = 0.0
    board = Board(clock=lambda: now)
    board.phase("warm-up", 3)
    now = 61.0
    board.phase("reinforcement learning", 10)
    board.done = 2
    board.figures |= {"reward": 0.25, "solve_rate": 0.5}
    now = 81.0
    for number in range(20):
        board.notes.append(f"rollout {number} " + "x" * 200)
    screen = Console(file=io.StringIO(), width=80, record=True)
    screen.print(draw(board))
    text = screen.export_text()
    assert re.search(r"✓ warm-up +1:01", text)
    assert re.search(r"reinforcement learning .*2 of 10 +0:20, 1:20 left", text)
    assert "reward 0.25  ·  solved 50%" in text
    assert "rollout 19" in text
    assert "rollout 3 " not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert len(text.splitlines()) < 12


def test_the_drawing_draws_while_it_lasts_and_leaves_its_phases_behind() -> None:
    terminal = Terminal()
    console = LiveConsole(terminal)
    work(console)
    console.close()
    console.close()
    last = terminal.getvalue().rpartition("✓")[2]
    assert "warm-up" in last
    assert "reinforcement learning" in last
    assert "copy-file-3" not in last


def test_a_running_score_is_shown_with_its_interval() -> None:
    board = Board()
    board.phase("evaluation", 10)
    board.figures |= {"solve_rate": 0.45, "low": 0.301, "high": 0.6, "sandboxes": 4}
    assert board.shown_figures() == ["solved 45% [30, 60]", "4 sandboxes"]


def test_a_streaming_console_leaves_every_line_on_the_screen() -> None:
    terminal = Terminal()
    console = StreamingConsole(terminal)
    console.phase("evaluation", 30)
    for number in range(30):
        console.note(f"[task-{number}:0] PASS")
        console.advance(1, solve_rate=1.0, low=0.9, high=1.0)
    console.close()
    text = terminal.getvalue()
    assert all(text.count(f"[task-{number}:0] PASS") == 1 for number in range(30))
    assert "solved 100% [90, 100]" in text
    assert "30 of 30" in text


def test_times_and_figures_read_as_a_person_writes_them() -> None:
    assert [show_seconds(s) for s in (0.4, 59.6, 61, 3725)] == ["0:00", "1:00", "1:01", "1:02:05"]
    assert show_figure("train_tokens", 12345) == "train tokens 12,345"
