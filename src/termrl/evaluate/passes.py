"""pass@k: the chance that at least one of k attempts at a task passes, without bias, as a mean over tasks.

Of n attempts with c passes it is 1 - C(n-c, k) / C(n, k). It is not defined for a task with fewer than k
attempts: such a task is left out and counted, never filled in by something else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

from termrl.evaluate.intervals import Estimate, mean_over_tasks, ratio_over_tasks


@dataclass(frozen=True, slots=True)
class PassAtK:
    """`undefined` tasks had fewer than k attempts and are not in the estimate."""

    k: int
    estimate: Estimate
    undefined: int

    def to_dict(self) -> dict[str, Any]:
        return {**self.estimate.to_dict(), "undefined_tasks": self.undefined}


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """The unbiased estimate from n attempts of which c passed; None where n < k."""
    if not 0 <= c <= n or k < 1:
        raise ValueError(f"pass@{k} of {c} passes in {n} attempts makes no sense")
    if n < k:
        return None
    return 1 - comb(n - c, k) / comb(n, k)


def pass_at_ks(passed_by_task: Mapping[str, Sequence[bool]], ks: Iterable[int]) -> dict[int, PassAtK]:
    """pass@k for each k, with a bootstrap over tasks; the same draws of tasks for each k."""
    counts = [(len(passed), sum(passed)) for passed in passed_by_task.values()]
    result = {}
    for k in ks:
        defined = [(n, value) for n, c in counts if (value := pass_at_k(n, c, k)) is not None]
        estimate = mean_over_tasks([value for _, value in defined], n=sum(n for n, _ in defined))
        result[k] = PassAtK(k, estimate, len(counts) - len(defined))
    return result


def accuracy(passed_by_task: Mapping[str, Sequence[bool]]) -> Estimate:
    """The share of rollouts that passed; tasks are what is resampled for its interval."""
    attempted = [passed for passed in passed_by_task.values() if passed]
    return ratio_over_tasks(
        [sum(passed) for passed in attempted],
        [len(passed) for passed in attempted],
        n=sum(len(passed) for passed in attempted),
    )
