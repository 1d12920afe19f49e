"""Leave-one-out with deviation: (r_i - mean(r without i)) / (std(r without i) + 1e-6).

Where the others are all alike their deviation says nothing of the scale, and the whole group's stands in:
the one that differs would otherwise be divided by nothing.
"""

from collections.abc import Sequence

import numpy as np

from termrl.learn.advantages.grpo import STD_EPSILON


def rloo_std(rewards_G: Sequence[float]) -> list[float]:
    rewards = np.asarray(rewards_G, np.float64)
    count = len(rewards)
    if count < 2:
        return [0.0] * count
    total, squares = rewards.sum(), (rewards**2).sum()
    mean = (total - rewards) / (count - 1)
    whole = rewards.std(ddof=1)
    if count > 2:
        variance = (squares - rewards**2 - (count - 1) * mean**2) / (count - 2)
        deviation = np.sqrt(np.maximum(variance, 0.0))
        deviation = np.where(deviation < 1e-9, whole, deviation)
    else:
        deviation = np.full(count, whole)
    return [float(advantage) for advantage in (rewards - mean) / (deviation + STD_EPSILON)]
