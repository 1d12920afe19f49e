"""What an evaluation's rollouts came to, each rate with its denominators.

Excluded rollouts are never scored in silence: every score is given twice, with them left out and with
them counted as failed. A PASS is a scored rollout whose reward reaches the threshold.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from termrl.evaluate.passes import accuracy, pass_at_ks
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout
from termrl.rollout.verdict import FULL_REWARD
from termrl.tasks.selection import Chosen

QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.95, 1.0)
type Passes = dict[str, list[bool]]


@dataclass(frozen=True, slots=True)
class TaskScore:
    """The attempts at one task, in order; `passed` is None for one that was excluded or is missing."""

    index: int
    task: str
    category: str
    difficulty: str
    outcomes: tuple[str | None, ...]
    rewards: tuple[float | None, ...]
    passed: tuple[bool | None, ...]

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> "TaskScore":
        lists = {name: tuple(row[name]) for name in ("outcomes", "rewards", "passed")}
        return cls(**{**row, **lists})

    def to_dict(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "task": self.task,
            "category": self.category,
            "difficulty": self.difficulty,
            "outcomes": list(self.outcomes),
            "rewards": list(self.rewards),
            "passed": list(self.passed),
        }


def passes(rollout: Rollout, threshold: float | None) -> bool | None:
    """Whether the rollout is a PASS; None where it is not scored."""
    if not rollout.outcome.scored or rollout.reward is None:
        return None
    return rollout.reward >= (FULL_REWARD if threshold is None else threshold)


def task_scores(
    chosen: Sequence[Chosen],
    rollouts: Mapping[tuple[int, int], Rollout],
    *,
    attempts: int,
    threshold: float | None,
) -> list[TaskScore]:
    """By task; `rollouts` are those that are there, by the task's place and the attempt."""
    scores = []
    for one in chosen:
        found = [rollouts.get((one.index, attempt)) for attempt in range(attempts)]
        metadata = one.task.config.metadata
        scores.append(
            TaskScore(
                one.index,
                one.task.task_name,
                str(metadata.get("category", metadata.get("family", ""))),
                str(metadata.get("difficulty", "")),
                tuple(rollout.outcome.value if rollout else None for rollout in found),
                tuple(rollout.reward if rollout else None for rollout in found),
                tuple(passes(rollout, threshold) if rollout else None for rollout in found),
            )
        )
    return scores


def scored_passes(scores: Iterable[TaskScore], *, excluded_as_failed: bool) -> Passes:
    """Whether each attempt at each task passed; excluded ones are left out or failed, missing ones out."""
    return {
        score.task: [
            bool(passed)
            for passed, outcome in zip(score.passed, score.outcomes, strict=True)
            if passed is not None or (excluded_as_failed and outcome is not None)
        ]
        for score in scores
    }


def rates(scores: Sequence[TaskScore], attempts: int) -> dict[str, Any]:
    """Accuracy and pass@k, both ways."""
    ways = {
        "excluded_left_out": scored_passes(scores, excluded_as_failed=False),
        "excluded_as_failed": scored_passes(scores, excluded_as_failed=True),
    }
    return {
        name: {
            "accuracy": accuracy(table).to_dict(),
            "pass_at_k": {
                str(k): one.to_dict() for k, one in pass_at_ks(table, range(1, attempts + 1)).items()
            },
        }
        for name, table in ways.items()
    }


def counts(scores: Sequence[TaskScore]) -> dict[str, Any]:
    """How many rollouts passed, failed, were excluded and why, with their share of those that ended."""
    outcomes = Counter(outcome for score in scores for outcome in score.outcomes if outcome is not None)
    passed = sum(one is True for score in scores for one in score.passed)
    failed = sum(one is False for score in scores for one in score.passed)
    excluded = {name: count for name, count in sorted(outcomes.items()) if not Outcome(name).scored}
    n = sum(outcomes.values())
    rows = {"PASS": passed, "FAIL": failed, **{name: count for name, count in excluded.items()}}
    return {
        "rollouts": n,
        "scored": passed + failed,
        "excluded": sum(excluded.values()),
        "missing": sum(outcome is None for score in scores for outcome in score.outcomes),
        "table": [
            {"result": name, "count": count, "share": count / n if n else None}
            for name, count in rows.items()
        ],
        "outcomes": dict(sorted(outcomes.items())),
    }


def by_attribute(scores: Sequence[TaskScore], attribute: str, attempts: int) -> dict[str, Any]:
    """The same rates over the tasks of each category or difficulty."""
    values = sorted({getattr(score, attribute) or "(none)" for score in scores})
    result: dict[str, Any] = {}
    for value in values:
        members = [score for score in scores if (getattr(score, attribute) or "(none)") == value]
        result[value] = {"tasks": len(members), **rates(members, attempts)["excluded_left_out"]}
    return result


def quantiles(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.quantile(np.asarray(values, np.float64), QUANTILES)
    names = [f"p{round(100 * quantile)}" for quantile in QUANTILES]
    return {
        **{name: float(value) for name, value in zip(names, found, strict=True)},
        "mean": float(np.mean(values)),
    }


def usage(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Turns, tokens and cost, in all and as quantiles over rollouts."""
    used = [rollout.used for rollout in rollouts]
    costs = [one.cost for one in used if one.cost is not None]
    return {
        "turns": {
            "total": sum(one.turns for one in used),
            "quantiles": quantiles([one.turns for one in used]),
        },
        "prompt_tokens": {
            "total": sum(one.prompt_tokens for one in used),
            "quantiles": quantiles([one.prompt_tokens for one in used]),
        },
        "sampled_tokens": {
            "total": sum(one.sampled_tokens for one in used),
            "quantiles": quantiles([one.sampled_tokens for one in used]),
        },
        "cost_usd": {
            "total": sum(costs) if costs else None,
            "rollouts": len(costs),
            "quantiles": quantiles(costs),
        },
    }


def seconds(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Time per phase of a rollout, as quantiles."""
    phases = ("setup", "agent", "model", "verifier", "total")
    return {phase: quantiles([getattr(rollout.timings, phase) for rollout in rollouts]) for phase in phases}
