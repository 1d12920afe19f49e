"""A rate with its denominator and a 95 % interval, over tasks by bootstrap.

Attempts at one task are not independent of each other, so tasks are resampled, not rollouts. Where the
resampled rates do not vary (all solved, none solved) the bootstrap says nothing and the exact binomial
bound over tasks stands in for it: no rate is ever given an interval of zero width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """`n` rollouts over `tasks` tasks; the rate and its interval are undefined where n is 0."""

    solve_rate: float | None
    low: float | None
    high: float | None
    n: int
    tasks: int

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


def solve_rate(solved_by_task: Mapping[str, Sequence[bool]], *, seed: int = 0) -> Rate:
    """The mean over tasks of the share of attempts that solved it."""
    attempts = [np.mean(outcomes) for outcomes in solved_by_task.values() if outcomes]
    n = sum(len(outcomes) for outcomes in solved_by_task.values())
    if not attempts:
        return Rate(None, None, None, 0, 0)
    rates = np.asarray(attempts, np.float64)
    rate = float(rates.mean())
    draws = np.random.default_rng(seed).integers(0, len(rates), size=(RESAMPLES, len(rates)))
    low, high = (float(bound) for bound in np.quantile(rates[draws].mean(axis=1), (0.025, 0.975)))
    if rate in (0.0, 1.0):
        margin = 1 - 0.025 ** (1 / len(rates))
        low, high = (0.0, margin) if rate == 0.0 else (1 - margin, 1.0)
    return Rate(rate, low, high, n, len(rates))
