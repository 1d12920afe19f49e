"""A mean over tasks with its denominators and a 95 % interval, by bootstrap over tasks.

Attempts at one task are not independent of each other, so tasks are resampled, not rollouts. Where the
resampled means cannot vary (all solved, none solved) the bootstrap says nothing and the exact binomial
bound over tasks stands in for it: no rate is ever given an interval of zero width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
LEVEL = 0.95
_CHUNK = 2_000_000
"""Draws held in memory at a time."""

type Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its interval, over `n` rollouts of `tasks` tasks; all undefined where `tasks` is 0."""

    value: float | None
    low: float | None
    high: float | None
    n: int
    tasks: int

    def to_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


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
    shares = [float(np.mean(outcomes)) for outcomes in solved_by_task.values() if outcomes]
    n = sum(len(outcomes) for outcomes in solved_by_task.values())
    estimate = mean_over_tasks(shares, n=n, seed=seed)
    return Rate(estimate.value, estimate.low, estimate.high, estimate.n, estimate.tasks)


def mean_over_tasks(values: Sequence[float], *, n: int, seed: int = 0) -> Estimate:
    """The mean of one value in [0, 1] a task."""
    return ratio_over_tasks(values, [1] * len(values), n=n, seed=seed)


def ratio_over_tasks(sums: Sequence[float], counts: Sequence[int], *, n: int, seed: int = 0) -> Estimate:
    """The sum of sums over the sum of counts, each task bringing one of both."""
    if not sums:
        return Estimate(None, None, None, 0, 0)
    tops, bottoms = np.asarray(sums, np.float64), np.asarray(counts, np.float64)
    value = float(tops.sum() / bottoms.sum())
    if value in (0.0, 1.0):
        low, high = _exact_bounds(value, len(tops))
    else:
        low, high = quantile_bounds(resampled_ratios(tops, bottoms, seed=seed))
    return Estimate(value, low, high, n, len(tops))


def resampled_ratios(tops: Floats, bottoms: Floats, *, seed: int = 0) -> Floats:
    """The ratio of sums in each of `RESAMPLES` draws of as many tasks as there are, with replacement."""
    random = np.random.default_rng(seed)
    tasks = len(tops)
    ratios = np.empty(RESAMPLES)
    chunk = max(1, _CHUNK // tasks)
    for start in range(0, RESAMPLES, chunk):
        size = min(chunk, RESAMPLES - start)
        draws = random.integers(0, tasks, size=(size, tasks))
        ratios[start : start + size] = tops[draws].sum(axis=1) / bottoms[draws].sum(axis=1)
    return ratios


def quantile_bounds(resampled: Floats, level: float = LEVEL) -> tuple[float, float]:
    low, high = np.quantile(resampled, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def quick_bounds(shares: Sequence[float]) -> tuple[float, float]:
    """An interval cheap enough for every second: normal, over tasks; exact where none or all passed."""
    values = np.asarray(shares, np.float64)
    value, tasks = float(values.mean()), len(values)
    if value in (0.0, 1.0):
        return _exact_bounds(value, tasks)
    if tasks == 1:
        return 0.0, 1.0
    margin = 1.96 * float(values.std(ddof=1)) / tasks**0.5
    return max(0.0, value - margin), min(1.0, value + margin)


def _exact_bounds(value: float, tasks: int, level: float = LEVEL) -> tuple[float, float]:
    """Clopper and Pearson's, for none or all of `tasks`."""
    margin = 1 - ((1 - level) / 2) ** (1 / tasks)
    return (0.0, margin) if value == 0.0 else (1 - margin, 1.0)
