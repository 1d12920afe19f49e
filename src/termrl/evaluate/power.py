"""How many attempts at each task it takes to see a difference between two models on the same tasks.

The difference of two pass rates, paired by task, has a variance of two parts: attempts at one task vary,
which more attempts average away, and tasks change by different amounts, which only more tasks do.
`needed_attempts` solves for the attempts at which a two-sided test at `alpha` sees the difference with
the chance `power`; where no number of attempts is enough it says how many tasks would be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import NormalDist

CORRELATION = 0.5
"""How alike attempts at one task are when nothing is known of it: 0 = not at all, 1 = always the same."""
MOST_ATTEMPTS = 10_000


@dataclass(frozen=True, slots=True)
class Variation:
    """`within` is the variance of one attempt at a task, on average over tasks; `rate` the mean pass rate."""

    rate: float
    within: float
    tasks: int

    @classmethod
    def assumed(cls, rate: float, tasks: int, correlation: float = CORRELATION) -> "Variation":
        return cls(rate, rate * (1 - rate) * (1 - correlation), tasks)

    @classmethod
    def measured(cls, passed_by_task: Mapping[str, Sequence[bool]]) -> "Variation":
        """From an evaluation; where no task has two attempts their likeness is assumed."""
        attempted = [passed for passed in passed_by_task.values() if passed]
        rates = [sum(passed) / len(passed) for passed in attempted]
        rate = sum(rates) / len(rates)
        repeated = [
            (len(passed), share) for passed, share in zip(attempted, rates, strict=True) if len(passed) > 1
        ]
        if not repeated:
            return cls.assumed(rate, len(attempted))
        within = sum(n / (n - 1) * share * (1 - share) for n, share in repeated) / len(repeated)
        return cls(rate, within, len(attempted))


@dataclass(frozen=True, slots=True)
class Power:
    """`attempts` is None where no number of them is enough with these tasks; `tasks_needed` would be."""

    attempts: int | None
    tasks_needed: int
    visible: float
    """The smallest difference that these tasks could show with any number of attempts."""


def needed_attempts(
    variation: Variation, difference: float, *, spread: float | None = None, alpha: float, power: float
) -> Power:
    """`spread` is the standard deviation of the tasks' true changes; the difference itself unless given."""
    spread = difference if spread is None else spread
    factor = NormalDist().inv_cdf(1 - alpha / 2) + NormalDist().inv_cdf(power)
    visible = factor * spread / sqrt(variation.tasks)
    allowed = (difference / factor) ** 2 * variation.tasks - spread**2
    noise = 2 * variation.within
    attempts = max(1, ceil(noise / allowed - 1e-9)) if allowed > 0 else None
    if attempts is not None and attempts > MOST_ATTEMPTS:
        attempts = None
    tasks_needed = ceil((factor / difference) ** 2 * (spread**2 + noise) - 1e-9)
    return Power(attempts, max(1, tasks_needed), visible)


def chance_to_see(
    variation: Variation, difference: float, attempts: int, *, spread: float | None = None, alpha: float
) -> float:
    """The power of so many attempts at each task."""
    spread = difference if spread is None else spread
    error = sqrt((spread**2 + 2 * variation.within / attempts) / variation.tasks)
    if error == 0:
        return 1.0
    return NormalDist().cdf(difference / error - NormalDist().inv_cdf(1 - alpha / 2))
