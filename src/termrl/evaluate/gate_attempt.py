"""One attempt at a task by one of the gate's subjects: a Harbor trial, read as a rollout without turns.

The evidence is kept with it: the end of what the tests printed and of the oracle's log where it failed, what
an oracle left behind. A trial that infrastructure broke is tried once more before it counts.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from harbor.models.trial.config import EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from termrl.evaluate.gate_subjects import Subject
from termrl.evaluate.gate_watch import Leavings, watch
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.rollout.verification import protect_verification
from termrl.tasks import HarborTask

PROCESSES = "processes"
SYSTEM_FILES = "system_files"
DIGEST = "digest"
_TRIES = 2
_LOGS = (("test-stdout.txt", "the tests printed"), ("oracle.txt", "the oracle printed"))
_TAIL = 600


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    environment: EnvironmentConfig
    trials_dir: Path


async def attempt(task: HarborTask, digest: str, subject: Subject, settings: AttemptSettings) -> Rollout:
    """One attempt, whatever it comes to."""
    rollout = await _try(task, digest, subject, settings)
    for _ in range(_TRIES - 1):
        if rollout.outcome.scored:
            break
        rollout = await _try(task, digest, subject, settings)
    return rollout


async def _try(task: HarborTask, digest: str, subject: Subject, settings: AttemptSettings) -> Rollout:
    config = TrialConfig(
        task=TaskConfig(path=task.task_dir),
        trials_dir=settings.trials_dir,
        agent=subject.agent(),
        environment=settings.environment.model_copy(),
    )
    try:
        trial = await Trial.create(config)
    except Exception as error:
        return _rollout(task, Outcome.BUILD_FAILED, None, f"{type(error).__name__}: {error}", digest)
    leavings = watch(trial, end_processes=subject.alone) if subject.watched else Leavings()
    protect_verification(trial)
    try:
        result = await trial.run()
        reward = _reward(result)
        outcome = _outcome(result, reward)
        detail = "" if outcome is Outcome.SOLVED else _evidence(result, trial.paths.trial_dir)
        timings = Timings(total=_seconds(result))
        return _rollout(task, outcome, reward, detail, digest, leavings, timings)
    except Exception as error:
        return _rollout(task, Outcome.SANDBOX_LOST, None, f"{type(error).__name__}: {error}", digest)
    finally:
        shutil.rmtree(trial.paths.trial_dir, ignore_errors=True)


def _rollout(
    task: HarborTask,
    outcome: Outcome,
    reward: float | None,
    detail: str,
    digest: str,
    leavings: Leavings | None = None,
    timings: Timings | None = None,
) -> Rollout:
    left = leavings or Leavings()
    tags = {
        DIGEST: digest,
        PROCESSES: json.dumps(left.processes),
        SYSTEM_FILES: json.dumps(left.system_files),
    }
    return Rollout(
        task_name=task.task_name,
        outcome=outcome,
        reward=reward,
        turns=(),
        timings=timings or Timings(),
        detail=detail,
        trial_dir="",
        tags=tags,
    )


def _reward(result: TrialResult) -> float | None:
    rewards = result.verifier_result.rewards if result.verifier_result is not None else None
    if not rewards:
        return None
    values = [float(value) for value in rewards.values()]
    return float(rewards["reward"]) if "reward" in rewards else sum(values) / len(values)


def _outcome(result: TrialResult, reward: float | None) -> Outcome:
    if reward is not None:
        return Outcome.SOLVED if reward >= 1 else Outcome.FAILED
    if result.verifier is not None:
        return Outcome.VERIFIER_FAILED
    return Outcome.BUILD_FAILED if result.agent_setup is None else Outcome.SANDBOX_LOST


def _evidence(result: TrialResult, trial_dir: Path) -> str:
    parts = []
    if result.exception_info is not None:
        parts.append(f"{result.exception_info.exception_type}: {result.exception_info.exception_message}")
    for name, what in _LOGS:
        for path in trial_dir.rglob(name):
            if text := path.read_text(errors="replace").strip():
                parts.append(f"{what}: {text[-_TAIL:]}")
    return "\n".join(parts)


def _seconds(result: TrialResult) -> float:
    if result.started_at is None or result.finished_at is None:
        return 0.0
    return (result.finished_at - result.started_at).total_seconds()
