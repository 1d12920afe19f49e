"""How much better a rollout did than what it is compared with: one module a way to say it.

Each is an `Advantage`: the rewards of one group go in, advantages come out in the same order.
`make_advantage` chooses by the settings. Only `reinforce` looks beyond the group, at a baseline it is given.
"""

from collections.abc import Callable, Sequence
from functools import partial

from termrl.config import TrainConfig
from termrl.learn.advantages.centred import centred
from termrl.learn.advantages.entropic import entropic
from termrl.learn.advantages.grpo import grpo
from termrl.learn.advantages.max_reward import max_reward
from termrl.learn.advantages.reinforce import reinforce, running_baseline
from termrl.learn.advantages.rloo import rloo
from termrl.learn.advantages.rloo_std import rloo_std

Advantage = Callable[[Sequence[float]], list[float]]

__all__ = ["Advantage", "is_constant", "make_advantage", "running_baseline"]


def make_advantage(config: TrainConfig, baseline: float | None = None) -> Advantage:
    """The way that the settings name; `baseline` is the running one before this step, None before any."""
    by_std = config.normalize_advantages_by_std
    match config.advantage:
        case "grpo":
            return grpo
        case "centred":
            return grpo if by_std else centred
        case "rloo_std":
            return rloo_std
        case "rloo":
            return rloo_std if by_std else rloo
        case "entropic":
            return partial(entropic, beta=config.entropic_beta)
        case "max_reward":
            return max_reward
        case "reinforce":
            return partial(reinforce, baseline=baseline)


def is_constant(rewards_G: Sequence[float]) -> bool:
    """Whether a group carries no signal when its rollouts are compared with each other."""
    return len(set(rewards_G)) <= 1
