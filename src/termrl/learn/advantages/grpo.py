"""GRPO: rewards less their group's mean, over its deviation (Bessel's): (r_i - mean(r)) / (std(r) + 1e-6)."""

from collections.abc import Sequence

import numpy as np

STD_EPSILON = 1e-6


def grpo(rewards_G: Sequence[float]) -> list[float]:
    rewards = np.asarray(rewards_G, np.float64)
    advantages = rewards - rewards.mean()
    if len(rewards) > 1:
        advantages /= rewards.std(ddof=1) + STD_EPSILON
    return [float(advantage) for advantage in advantages]
