"""What a long piece of work tells whoever watches it.

The loop is handed a `Progress` and never knows what is behind it: a live console, plain lines, nothing.
Calls are cheap and never fail; numbers are the latest of their name and last until the next phase.
"""

from typing import Protocol


class Progress(Protocol):
    def phase(self, name: str, total: int | None = None) -> None:
        """A new phase begins, of `total` parts where that is known; the one before it is over."""

    def advance(self, n: int = 1, **numbers: float) -> None:
        """`n` more parts of the phase are done."""

    def numbers(self, **numbers: float) -> None:
        """Figures worth showing: reward, solve_rate (low, high: its interval), sandboxes, any other name."""

    def note(self, text: str) -> None:
        """One line about something that just happened, such as a rollout's end."""

    def close(self) -> None:
        """Nothing more will be told."""


class Silent:
    """A progress that nobody watches."""

    def phase(self, name: str, total: int | None = None) -> None:
        pass

    def advance(self, n: int = 1, **numbers: float) -> None:
        pass

    def numbers(self, **numbers: float) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass
