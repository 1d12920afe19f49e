"""How much better a rollout did than the others of its group.

Rewards go in by group, advantages come out in the same order. A group whose rewards are all alike has
advantages of zero: it says nothing about what to do more of.
"""

from collections.abc import Sequence

import numpy as np

STD_EPSILON = 1e-6


def group_advantages(rewards_G: Sequence[float], *, normalize_by_std: bool = False) -> list[float]:
    """Rewards centred on the group's mean; divided by their (Bessel-corrected) deviation where asked for."""
    rewards = np.asarray(rewards_G, np.float64)
    advantages = rewards - rewards.mean()
    if normalize_by_std and len(rewards) > 1:
        advantages /= rewards.std(ddof=1) + STD_EPSILON
    return [float(advantage) for advantage in advantages]


def is_constant(rewards_G: Sequence[float]) -> bool:
    """Whether a group carries no signal."""
    return len(set(rewards_G)) <= 1
