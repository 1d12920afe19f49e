"""What an evaluation came to, as one plain dict: results.json, and what results.md and the panel are made of.

run, model_name, checkpoint_url, agent         what was evaluated
dataset          name, digest, tasks, chosen   on what
counts           rollouts, scored, excluded, missing, table [{result, count, share}], outcomes
scores           excluded_left_out | excluded_as_failed -> accuracy, pass_at_k {k: value, low, high, n, tasks}
by_category, by_difficulty                     the same scores over a part of the tasks, excluded left out
usage            turns, prompt_tokens, sampled_tokens, cost_usd: total and quantiles over rollouts
tasks            [{index, task, category, difficulty, outcomes, rewards, passed}], attempts in order
settings, versions, seed
seconds          quantiles per phase of a rollout, and wall: all that differs from one run to the same again
"""

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from termrl import __version__
from termrl.errors import UserError
from termrl.evaluate.intervals import Estimate
from termrl.evaluate.scores import TaskScore, by_attribute, counts, rates, seconds, usage
from termrl.rollout.record import Rollout

RESULTS = "results.json"
SCHEMA = 1
PACKAGES = ("harbor", "tinker", "renderers", "jax", "litellm")
NOT_OF_THE_RESULT = frozenset(
    {
        "behavior_if_run_exists",
        "export",
        "keep_trials",
        "log_level",
        "n_parallel_envs",
        "output_path",
        "prewarm",
        "prices",
        "retry",
        "run_name",
        "run_root",
        "snapshots",
    }
)
"""Settings that say how an evaluation is run here, and nothing about what it measures."""


class NotAResultError(UserError):
    """A path or a run that holds no results of an evaluation."""


@dataclass(frozen=True)
class EvalResult:
    """An evaluation's scores, its rollouts without their turns, and where it is kept.

    `results` is the whole of results.json. An evaluation of several benchmarks has one of these for each in
    `parts`, and its own scores are those of all tasks together.
    """

    results: Mapping[str, Any]
    rollouts: Sequence[Rollout]
    run_path: Path
    output_path: Path
    parts: tuple["EvalResult", ...] = field(default=())

    @property
    def accuracy(self) -> Estimate:
        """The share of scored rollouts that passed."""
        return _estimate(self.results["scores"]["excluded_left_out"]["accuracy"])

    @property
    def pass_at_k(self) -> dict[int, Estimate]:
        found = self.results["scores"]["excluded_left_out"]["pass_at_k"]
        return {int(k): _estimate(one) for k, one in found.items()}

    @property
    def excluded(self) -> int:
        return int(self.results["counts"]["excluded"])


def build_results(
    *,
    run_name: str,
    settings: Mapping[str, Any],
    dataset: Mapping[str, Any],
    scores: Sequence[TaskScore],
    rollouts: Sequence[Rollout],
    attempts: int,
    wall_seconds: float,
    service: str,
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run": run_name,
        "model_name": settings.get("model_name"),
        "checkpoint_url": settings.get("checkpoint_url"),
        "model_service": service,
        "agent": settings.get("agent"),
        "dataset": dict(dataset),
        "attempts": attempts,
        "pass_threshold": settings.get("pass_threshold"),
        "counts": counts(scores),
        "scores": rates(scores, attempts),
        "by_category": by_attribute(scores, "category", attempts),
        "by_difficulty": by_attribute(scores, "difficulty", attempts),
        "usage": usage(rollouts),
        "tasks": [score.to_dict() for score in scores],
        "settings": {name: value for name, value in settings.items() if name not in NOT_OF_THE_RESULT},
        "seed": settings.get("seed"),
        "versions": versions(),
        "seconds": {**seconds(rollouts), "wall": wall_seconds},
    }


def versions() -> dict[str, str]:
    found = {"termrl": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def read_results(path: Path) -> dict[str, Any]:
    """The results of a run's directory, of an output directory, or of a results file."""
    file = path / RESULTS if path.is_dir() else path
    try:
        results = json.loads(file.read_text())
    except FileNotFoundError:
        raise NotAResultError(
            f"There is no {file.name} in {file.parent}: the evaluation has not ended; give its command again."
        ) from None
    except (OSError, ValueError) as error:
        raise NotAResultError(f"{file} can't be read as results of an evaluation: {error}.") from error
    if not isinstance(results, dict) or results.get("schema") != SCHEMA or "tasks" not in results:
        raise NotAResultError(f"{file} does not hold the results of an evaluation of this termrl.")
    return results


def passed_by_task(results: Mapping[str, Any], *, excluded_as_failed: bool = False) -> dict[str, list[bool]]:
    """Whether each attempt at each task passed, from results that were read back."""
    return {
        row["task"]: [
            bool(passed)
            for passed, outcome in zip(row["passed"], row["outcomes"], strict=True)
            if passed is not None or (excluded_as_failed and outcome is not None)
        ]
        for row in results["tasks"]
    }


def _estimate(values: Mapping[str, Any]) -> Estimate:
    return Estimate(*(values[name] for name in ("value", "low", "high", "n", "tasks")))
