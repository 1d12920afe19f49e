"""RLOO: a reward less the mean of the others': A_i = r_i - mean(r without i). Alone there is no other: 0."""

from collections.abc import Sequence

import numpy as np


def rloo(rewards_G: Sequence[float]) -> list[float]:
    rewards = np.asarray(rewards_G, np.float64)
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return [float(advantage) for advantage in rewards - others]
