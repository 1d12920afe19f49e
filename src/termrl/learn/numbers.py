"""The numbers of a step: rates with their denominators, quantiles, what the update did to the policy.

All of them are taken over every rollout of the step, before any filter; an excluded rollout is counted by
name. Means over nothing are None, never 0.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from termrl.learn.batch import Batch
from termrl.learn.datums import Lesson
from termrl.rollout.record import Rollout

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}


def rollout_numbers(groups: Sequence[Sequence[Rollout]], version: int) -> dict[str, Any]:
    """What the rollouts came to; `version` is that of the weights they are to train."""
    rollouts = [rollout for group in groups for rollout in group]
    scored = [rollout for rollout in rollouts if rollout.reward is not None]
    count = len(scored)
    lags = [version - turn.policy_version for rollout in rollouts for turn in rollout.turns]
    return {
        "groups": len(groups),
        "rollouts": len(rollouts),
        "scored": count,
        "excluded": len(rollouts) - count,
        "outcomes": dict(sorted(Counter(rollout.outcome.value for rollout in rollouts).items())),
        "reward": sum(rollout.reward or 0.0 for rollout in scored) / count if count else None,
        "solve_rate": sum(rollout.solved for rollout in scored) / count if count else None,
        "tasks": task_numbers(rollouts),
        "turns_mean": float(np.mean([len(rollout.turns) for rollout in rollouts])) if rollouts else 0.0,
        "turns": quantiles([len(rollout.turns) for rollout in rollouts]),
        "segments": sum(rollout.segment_count for rollout in rollouts),
        "tokens": quantiles([rollout.sampled_tokens for rollout in rollouts]),
        "seconds_per_rollout": quantiles([rollout.timings.total for rollout in rollouts]),
        "sandbox_seconds": sum(rollout.timings.total for rollout in rollouts),
        "sampled_tokens": sum(rollout.sampled_tokens for rollout in rollouts),
        "prompt_tokens": sum(rollout.prompt_tokens for rollout in rollouts),
        "staleness_mean": float(np.mean(lags)) if lags else None,
        "staleness_max": max(lags, default=None),
    }


def task_numbers(rollouts: Sequence[Rollout]) -> dict[str, dict[str, Any]]:
    """By task: attempts, scored ones, solved ones, mean reward."""
    by_task: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        by_task.setdefault(rollout.task_name, []).append(rollout)
    return {
        name: {
            "n": len(members),
            "scored": len(rewards),
            "solved": sum(rollout.solved for rollout in members),
            "reward": sum(rewards) / len(rewards) if rewards else None,
        }
        for name, members in sorted(by_task.items())
        for rewards in [[rollout.reward for rollout in members if rollout.reward is not None]]
    }


def batch_numbers(batches: Sequence[Batch]) -> dict[str, Any]:
    """What was made of the rollouts: what was left out, and the advantages of the rest."""
    credits = [credit for batch in batches for credit in batch.credits]
    lessons = [lesson for batch in batches for rollout in batch.rollout_lessons for lesson in rollout]
    advantages = np.asarray([credit.advantage for credit in credits])
    return {
        "groups_constant": sum(batch.constant for batch in batches),
        "groups_too_small": sum(batch.too_small for batch in batches),
        "rollouts_trained": len(credits),
        "datums": len(lessons),
        "train_tokens": sum(lesson.length for lesson in lessons),
        "shaped_reward": float(np.mean([credit.shaped_reward for credit in credits])) if credits else None,
        "advantage_abs_mean": float(np.abs(advantages).mean()) if credits else 0.0,
        "advantage_std": float(advantages.std()) if credits else None,
        "advantage_min": float(advantages.min()) if credits else None,
        "advantage_max": float(advantages.max()) if credits else None,
    }


def policy_numbers(lessons: Sequence[Lesson], logprobs: Sequence[np.ndarray]) -> dict[str, Any]:
    """How far the learner's logprobs are from the sampler's, over the sampled tokens of what was trained."""
    if not lessons:
        return {}
    old = np.concatenate([lesson.logprobs_T[lesson.mask_T] for lesson in lessons]).astype(np.float64)
    pairs = zip(lessons, logprobs, strict=True)
    new = np.concatenate([found[lesson.mask_T] for lesson, found in pairs]).astype(np.float64)
    gap = new - old
    ratio = np.exp(np.clip(gap, -20, 20))
    return {
        "tokens_trained_on": len(new),
        "ratio_mean": float(ratio.mean()),
        "ratio_min": float(ratio.min()),
        "ratio_max": float(ratio.max()),
        "ratio_std": float(ratio.std()),
        "entropy": float(-new.mean()),
        "kl_sampler": float(-gap.mean()),
        "kl_sampler_k3": float((ratio - 1 - gap).mean()),
    }


def quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.quantile(np.asarray(values, np.float64), list(QUANTILES.values()))
    return {"mean": float(np.mean(values)), **dict(zip(QUANTILES, map(float, found), strict=True))}
