"""Entropic: how much a rollout's share of the exponential utility exceeds the others'.

A_i = exp(beta r_i) / mean(exp(beta r) without i) - 1. It prefers the best more the larger beta is; the sum
over a group is not zero.
"""

from collections.abc import Sequence

import numpy as np


def entropic(rewards_G: Sequence[float], *, beta: float) -> list[float]:
    rewards = np.asarray(rewards_G, np.float64)
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    utilities = np.exp(beta * (rewards - rewards.max()))
    others = (utilities.sum() - utilities) / (len(rewards) - 1)
    # The best one's exponential is 1; what the others' mean loses to rounding would else be divided by.
    return [float(advantage) for advantage in utilities / np.maximum(others, 1e-12) - 1]
