"""The optimizer's settings at each step: how the learning rate rises and falls over a run."""

import math

import tinker

from termrl.config import TrainConfig


def learning_rate_share(step: int, steps: int, schedule: str, warmup_steps: int = 0) -> float:
    """The share of the full learning rate at a step, counted from 0.

    It rises linearly over `warmup_steps`, then is constant, or falls along a line or a half cosine that
    would reach zero at `steps`: the last step still learns.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    fallen = (step - warmup_steps) / max(steps - warmup_steps, 1)
    if schedule == "linear":
        return 1 - fallen
    if schedule == "cosine":
        return (1 + math.cos(math.pi * fallen)) / 2
    return 1.0


def adam_at(step: int, steps: int, config: TrainConfig) -> tinker.AdamParams:
    """Adam as the settings have it, at a step of reinforcement learning that has so many."""
    share = learning_rate_share(step, steps, config.lr_schedule, config.lr_warmup_steps)
    return tinker.AdamParams(
        learning_rate=config.learning_rate * share,
        beta1=config.adam_beta1,
        beta2=config.adam_beta2,
        eps=config.adam_eps,
        weight_decay=config.weight_decay,
        grad_clip_norm=config.grad_clip_norm,
    )
