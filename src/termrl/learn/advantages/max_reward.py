"""Max-reward: what the group's best would have lost without this rollout, A_i = max(r) - max(r without i).

The others' maximum is a baseline that does not depend on rollout i, so this is an unbiased estimate of the
gradient of the best reward of a group: only a single best one has an advantage.
"""

from collections.abc import Sequence


def max_reward(rewards_G: Sequence[float]) -> list[float]:
    if len(rewards_G) < 2:
        return [0.0] * len(rewards_G)
    second, best = sorted(rewards_G)[-2:]
    return [best - second if reward == best else 0.0 for reward in rewards_G]
