"""One attempt at a task by one of the gate's subjects: a Harbor trial, read as a rollout without turns.

It is guarded as every rollout is: a cheating agent that was seen tampering has not passed. The evidence is
kept with it: the end of what the tests printed and of the oracle's log where it failed, what an oracle left
behind. A trial that infrastructure broke is tried once more before it counts.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harbor.models.trial.config import TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult

from termrl.evaluate.gate_subjects import Subject
from termrl.evaluate.gate_watch import Leavings, watch
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.rollout.reward import RewardRule
from termrl.rollout.trial import create_trial
from termrl.rollout.verdict import FULL_REWARD, verifier_rewards
from termrl.rollout.verification import Guard
from termrl.sandbox.backends import Backend
from termrl.tasks import HarborTask

PROCESSES = "processes"
SYSTEM_FILES = "system_files"
SIGNS = "signs"
"""The tag for what looks like tampering; a task's own oracle may change the same."""
DIGEST = "digest"
_TRIES = 2
_LOGS = (("test-stdout.txt", "the tests printed"), ("oracle.txt", "the oracle printed"))
_TAIL = 600


@dataclass(frozen=True, slots=True)
class AttemptSettings:
    backend: Backend
    trials_dir: Path


async def attempt(task: HarborTask, digest: str, subject: Subject, settings: AttemptSettings) -> Rollout:
    """One attempt, whatever it comes to."""
    rollout = await _try(task, digest, subject, settings)
    for _ in range(_TRIES - 1):
        if is_known(rollout, subject):
            break
        rollout = await _try(task, digest, subject, settings)
    return rollout


def is_known(rollout: Rollout, subject: Subject) -> bool:
    """Whether it needs no other try: it was scored, or is a cheating agent's, which then has not passed."""
    return rollout.outcome.scored or subject.cheats


async def _try(task: HarborTask, digest: str, subject: Subject, settings: AttemptSettings) -> Rollout:
    config = TrialConfig(
        task=TaskConfig(path=task.task_dir),
        trials_dir=settings.trials_dir,
        agent=subject.agent(),
        environment=settings.backend.environment_config(task.config),
    )
    try:
        trial = await create_trial(config, keep=True)
    except Exception as error:
        return _rollout(task, Outcome.BUILD_FAILED, None, f"{type(error).__name__}: {error}", digest)
    leavings = watch(trial, end_processes=subject.alone) if subject.watched else Leavings()
    guard = Guard(trial)
    trial.call_before_stop(guard.look_for_a_rewriter)
    try:
        result = await trial.run()
        reward = _reward(result)
        outcome = _outcome(result, reward)
        detail = "" if outcome is Outcome.SOLVED else _evidence(result, trial.paths.trial_dir)
        timings = Timings(total=_seconds(result))
        return _rollout(task, outcome, reward, detail, digest, leavings, timings, guard.signs)
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
    signs: Sequence[str] = (),
) -> Rollout:
    left = leavings or Leavings()
    tags = {
        DIGEST: digest,
        PROCESSES: json.dumps(left.processes),
        SYSTEM_FILES: json.dumps(left.system_files),
        SIGNS: json.dumps(sorted(signs)),
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
    rewards = verifier_rewards(result)
    return RewardRule().of(rewards) if rewards else None


def _outcome(result: TrialResult, reward: float | None) -> Outcome:
    if reward is not None:
        return Outcome.SOLVED if reward >= FULL_REWARD else Outcome.FAILED
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
