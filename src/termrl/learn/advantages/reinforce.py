"""Plain REINFORCE with a running baseline: rewards less the mean of earlier steps', A_i = r_i - baseline.

The baseline after a step is decay · before + (1 - decay) · the step's mean; before the first step it is the
group's own mean. It is a function of the steps' rewards alone, so a resumed run has the same.
"""

from collections.abc import Sequence


def reinforce(rewards_G: Sequence[float], *, baseline: float | None) -> list[float]:
    level = sum(rewards_G) / len(rewards_G) if baseline is None else baseline
    return [reward - level for reward in rewards_G]


def running_baseline(before: float | None, rewards: Sequence[float], decay: float) -> float | None:
    """The baseline after a step with these rewards; what it was where none was scored."""
    if not rewards:
        return before
    mean = sum(rewards) / len(rewards)
    return mean if before is None else decay * before + (1 - decay) * mean
