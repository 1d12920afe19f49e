"""Rewards less their group's mean: A_i = r_i - mean(r)."""

from collections.abc import Sequence

import numpy as np


def centred(rewards_G: Sequence[float]) -> list[float]:
    rewards = np.asarray(rewards_G, np.float64)
    return [float(advantage) for advantage in rewards - rewards.mean()]
