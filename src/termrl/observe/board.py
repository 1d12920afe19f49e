"""What the console shows, apart from how: the phase, its progress, figures, and what happened last."""

import time
from collections import deque
from collections.abc import Callable

NOTES_KEPT = 6


class Board:
    """The state of a `Progress`, written by the loop and read by whatever draws it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = clock()
        self.name = ""
        self.total: int | None = None
        self.done = 0
        self.phase_began = self.began
        self.figures: dict[str, float] = {}
        self.notes: deque[str] = deque(maxlen=NOTES_KEPT)
        self.finished: list[tuple[str, float]] = []

    def phase(self, name: str, total: int | None) -> None:
        if self.name:
            self.finished.append((self.name, self.phase_seconds))
        self.name, self.total, self.done = name, total, 0
        self.phase_began = self._clock()
        self.figures = {}

    @property
    def seconds(self) -> float:
        return self._clock() - self.began

    @property
    def phase_seconds(self) -> float:
        return self._clock() - self.phase_began

    @property
    def seconds_left(self) -> float | None:
        """At the pace of the phase so far; None before there is one."""
        if not self.total or not self.done:
            return None
        return self.phase_seconds / self.done * max(self.total - self.done, 0)

    def shown_figures(self) -> list[str]:
        figures = dict(self.figures)
        low, high = figures.pop("low", None), figures.pop("high", None)
        shown = {name: show_figure(name, value) for name, value in figures.items()}
        if low is not None and high is not None and "solve_rate" in shown:
            shown["solve_rate"] += f" [{100 * low:.0f}, {100 * high:.0f}]"
        return list(shown.values())


def show_figure(name: str, value: float) -> str:
    match name:
        case "reward":
            return f"reward {value:.2f}"
        case "solve_rate":
            return f"solved {value:.0%}"
        case "tokens_per_second":
            return f"{value:,.0f} tokens/s"
        case "sandboxes":
            return f"{value:.0f} sandboxes"
        case _:
            words = name.replace("_", " ")
            return f"{words} {value:,}" if isinstance(value, int) else f"{words} {value:.4g}"


def show_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
