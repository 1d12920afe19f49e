"""Two evaluations of the same tasks, paired by task: the difference, how sure it is, and what flipped.

With one attempt a task the test is McNemar's, exact; with more, a permutation of signs over the tasks'
differences, exact where there are few of them. Tasks are what is resampled for the interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import comb
from typing import Any

import numpy as np

from termrl.evaluate.intervals import Floats, quantile_bounds, resampled_ratios

PERMUTATIONS = 100_000
EXACT_TASKS = 14
"""Up to so many tasks that differ, every assignment of signs is tried."""


@dataclass(frozen=True, slots=True)
class Flip:
    """A task on which the two differ, with the share of attempts that passed in each."""

    task: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """`difference` is the second's pass@1 less the first's, over the `tasks` that both have."""

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    test: str
    tasks: int
    unpaired: int
    gained: tuple[Flip, ...]
    lost: tuple[Flip, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    first: Mapping[str, Sequence[bool]], second: Mapping[str, Sequence[bool]], *, seed: int = 0
) -> Comparison:
    """Both map a task to whether each of its attempts passed. Raises ValueError with no task in common."""
    both = [task for task in first if first[task] and second.get(task)]
    if not both:
        raise ValueError("the two have no task in common")
    before = np.array([np.mean(first[task]) for task in both])
    after = np.array([np.mean(second[task]) for task in both])
    differences = after - before
    single = all(len(first[task]) == len(second[task]) == 1 for task in both)
    if single:
        gains, losses = int((differences > 0).sum()), int((differences < 0).sum())
        p_value, test = mcnemar_p(gains, losses), "McNemar, exact"
    else:
        p_value, test = permutation_p(differences, seed=seed), "permutation of signs over tasks"
    low, high = _bounds(differences, seed)
    flips = [
        Flip(task, float(was), float(now))
        for task, was, now in zip(both, before, after, strict=True)
        if was != now
    ]
    return Comparison(
        first=float(before.mean()),
        second=float(after.mean()),
        difference=float(differences.mean()),
        low=low,
        high=high,
        p_value=p_value,
        test=test,
        tasks=len(both),
        unpaired=len(set(first) | set(second)) - len(both),
        gained=tuple(sorted((f for f in flips if f.after > f.before), key=_size)),
        lost=tuple(sorted((f for f in flips if f.after < f.before), key=_size)),
    )


def mcnemar_p(gains: int, losses: int) -> float:
    """Two-sided and exact: how likely so lopsided a split of the tasks that flipped is by chance."""
    flipped = gains + losses
    if flipped == 0:
        return 1.0
    tail = sum(comb(flipped, count) for count in range(min(gains, losses) + 1)) / float(2**flipped)
    return min(1.0, 2 * tail)


def permutation_p(differences: Floats, *, seed: int = 0) -> float:
    """Two-sided: how likely a mean this far from 0 is if each task's sign were a coin's."""
    moving = differences[differences != 0]
    if not len(moving):
        return 1.0
    # Sums of the same numbers in another order differ in their last bits; what is as far is no farther.
    observed = abs(moving.sum()) - 1e-9
    if len(moving) <= EXACT_TASKS:
        signs = np.array(list(product((-1.0, 1.0), repeat=len(moving))))
        return float((np.abs(signs @ moving) >= observed).mean())
    random = np.random.default_rng(seed)
    as_far = 0
    chunk = max(1, 2_000_000 // len(moving))
    for start in range(0, PERMUTATIONS, chunk):
        size = min(chunk, PERMUTATIONS - start)
        signs = random.integers(0, 2, size=(size, len(moving))) * 2.0 - 1.0
        as_far += int((np.abs(signs @ moving) >= observed).sum())
    return (as_far + 1) / (PERMUTATIONS + 1)


def _bounds(differences: Floats, seed: int) -> tuple[float, float]:
    if np.ptp(differences) == 0.0:
        # Every task moved alike, mostly not at all: the bootstrap would claim to be certain.
        margin = 1 - 0.025 ** (1 / len(differences))
        value = float(differences[0])
        return max(-1.0, value - margin), min(1.0, value + margin)
    return quantile_bounds(resampled_ratios(differences, np.ones(len(differences)), seed=seed))


def _size(flip: Flip) -> tuple[float, str]:
    return -abs(flip.after - flip.before), flip.task
