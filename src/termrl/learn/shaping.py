"""Reward shaping: what is taken off the verifier's reward before rollouts are compared.

The rollout's own reward is never changed: metrics and the store have both. With every cost at zero, which is
the default, the shaped reward is the reward.
"""

from termrl.config import ShapingConfig
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout


def shaped_reward(rollout: Rollout, shaping: ShapingConfig) -> float:
    """What a scored rollout is worth to the learner."""
    if rollout.reward is None:
        raise ValueError(f"a rollout that ended as {rollout.outcome} has no reward to shape")
    worth = rollout.reward
    worth -= shaping.turn_cost * len(rollout.turns)
    worth -= shaping.token_cost * rollout.sampled_tokens
    if rollout.outcome is Outcome.UNPARSABLE:
        worth -= shaping.format_penalty
    if rollout.outcome is Outcome.CONTEXT_EXHAUSTED:
        worth -= shaping.context_exhausted_penalty
    return worth
