"""What a step's rollouts come to: numbers for people, taken before any filter, and datums for the trainer.

A group is compared among the rollouts of it that were scored; those that the infrastructure lost are
counted by name and left out. Fewer than two of a group, or rewards all alike, teach nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import tinker

from termrl.config import TrainConfig
from termrl.learn.advantages import group_advantages, is_constant
from termrl.learn.datums import rollout_datums
from termrl.rollout.record import Rollout


@dataclass(frozen=True, slots=True)
class Batch:
    """The datums of each rollout that has something to teach, and what is to be said of all of them."""

    rollout_datums: list[list[tinker.Datum]]
    metrics: dict[str, Any]

    def minibatches(self, count: int) -> list[list[tinker.Datum]]:
        """The datums in `count` disjoint parts, split by rollout; fewer where there are fewer rollouts."""
        parts = [self.rollout_datums[index::count] for index in range(count)]
        return [[datum for datums in part for datum in datums] for part in parts if part]


def make_batch(groups: Sequence[Sequence[Rollout]], config: TrainConfig, *, step: int) -> Batch:
    """The batch of one step from its groups of rollouts."""
    taught: list[tuple[Rollout, float]] = []
    constant = small = 0
    for index, group in enumerate(groups):
        scored = [rollout for rollout in group if rollout.reward is not None]
        rewards = [rollout.reward for rollout in scored if rollout.reward is not None]
        if config.shuffle_rewards:
            Random(f"{config.seed}/shuffle/{step}/{index}").shuffle(rewards)
        if len(rewards) < 2:
            small += 1
            continue
        constant += is_constant(rewards)
        if is_constant(rewards) and config.remove_constant_reward_groups:
            continue
        advantages = group_advantages(rewards, normalize_by_std=config.normalize_advantages_by_std)
        taught += zip(scored, advantages, strict=True)
    weights = rollout_weights([rollout for rollout, _ in taught], config.loss_normalization)
    datums = [
        rollout_datums(rollout.turns, weight * advantage)
        for (rollout, advantage), weight in zip(taught, weights, strict=True)
    ]
    metrics = rollout_metrics([rollout for group in groups for rollout in group])
    metrics |= {
        "groups": len(groups),
        "groups_constant": constant,
        "groups_too_small": small,
        "rollouts_trained": len(datums),
        "datums": sum(map(len, datums)),
        "train_tokens": sum(datum.model_input.length for rollout in datums for datum in rollout),
        "advantage_abs_mean": float(np.mean([abs(advantage) for _, advantage in taught])) if taught else 0.0,
    }
    return Batch([each for each in datums if each], metrics)


def rollout_weights(rollouts: Sequence[Rollout], normalization: str) -> list[float]:
    """What to multiply each rollout's advantage with, so that rollouts, or else tokens, weigh the same.

    The trainer sums over tokens: left alone, a rollout that fails at length outweighs one that succeeds in
    few words. The mean weight over tokens is 1 either way, so that one learning rate fits both.
    """
    lengths = [max(rollout.sampled_tokens, 1) for rollout in rollouts]
    if normalization == "token" or not lengths:
        return [1.0] * len(lengths)
    mean = sum(lengths) / len(lengths)
    return [mean / length for length in lengths]


def rollout_metrics(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Rates with their denominators: all, scored, excluded by name."""
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    count = len(scored)
    return {
        "rollouts": len(rollouts),
        "scored": count,
        "excluded": len(rollouts) - count,
        "outcomes": dict(sorted(Counter(rollout.outcome.value for rollout in rollouts).items())),
        "reward": sum(rollout.reward or 0.0 for rollout in scored) / count if count else None,
        "solve_rate": sum(rollout.solved for rollout in scored) / count if count else None,
        "turns_mean": float(np.mean([len(rollout.turns) for rollout in rollouts])) if rollouts else 0.0,
        "segments": sum(rollout.segment_count for rollout in rollouts),
        "sampled_tokens": sum(rollout.sampled_tokens for rollout in rollouts),
        "prompt_tokens": sum(rollout.prompt_tokens for rollout in rollouts),
    }
