"""One attempt at one task: a Harbor trial with the policy as its agent's model, read as a rollout.

Whatever goes wrong inside a trial becomes the rollout's outcome; only what would break every other
rollout too (`UserError`) and cancellation come out as exceptions.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Any, Protocol

from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult
from harbor.trial.trial import Trial

from termrl.agents.model import PolicyModel
from termrl.agents.terminus import PolicyTerminus2
from termrl.errors import UserError
from termrl.policy.budget import ContextBudget
from termrl.policy.rendering import Renderer
from termrl.policy.sampler import Sampler
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.rollout.settings import AGENT, LOCAL_ENVIRONMENT, RolloutSettings
from termrl.rollout.trial import create_trial, tests_read_agent_logs
from termrl.rollout.verdict import Verdict, judge, timings_of
from termrl.rollout.verification import protect_verification

_TAILS = (("exception.txt", 3000), ("trial.log", 1000))
"""What is kept of the logs of a trial that infrastructure broke: the last characters of each."""


class Task(Protocol):
    """What a rollout needs to know of a task."""

    @property
    def task_name(self) -> str: ...

    @property
    def task_dir(self) -> Path: ...


class RolloutRunner:
    def __init__(self, settings: RolloutSettings, renderer: Renderer) -> None:
        self._settings = settings
        self._renderer = renderer
        self._budget = ContextBudget(settings.context_limit, settings.max_tokens, settings.min_answer_tokens)
        self._environment = _environment_config(settings)

    async def run(self, task: Task, sampler: Sampler, *, seed: int) -> Rollout:
        """One attempt, whatever its outcome; raises `UserError` when no other attempt could do better."""
        model = PolicyModel(sampler.for_attempt(), self._renderer, self._budget, seed)
        try:
            trial = await create_trial(self._trial_config(task), keep=self._settings.keep_trials != "none")
        except UserError:
            raise
        except Exception as error:
            failed = Verdict(Outcome.BUILD_FAILED, None, f"{type(error).__name__}: {error}")
            return _rollout(task, failed, model, Timings())
        kept = self._settings.keep_trials == "all"
        try:
            rollout = await self._run_trial(task, trial, model)
            kept = kept or (self._settings.keep_trials == "failed" and not rollout.solved)
            return rollout
        finally:
            if not kept:
                await asyncio.to_thread(shutil.rmtree, trial.paths.trial_dir, ignore_errors=True)

    async def _run_trial(self, task: Task, trial: Trial, model: PolicyModel) -> Rollout:
        agent = trial.agent
        if not isinstance(agent, PolicyTerminus2):
            raise TypeError(f"a rollout's agent must be PolicyTerminus2, not {type(agent).__name__}")
        reads_logs = tests_read_agent_logs(task.task_dir / "tests")
        agent.attach(model, write_trajectory=self._settings.keep_trials != "none" or reads_logs)
        protect_verification(trial)
        try:
            result: TrialResult = await trial.run()
        except Exception as error:
            lost = Verdict(Outcome.SANDBOX_LOST, None, f"{type(error).__name__}: {error}")
            return _rollout(task, lost, model, Timings(), trial.paths.trial_dir)
        if isinstance(model.failure, UserError):
            raise model.failure
        verdict = judge(result, agent, model, trial.agent_timeout_sec)
        return _rollout(task, verdict, model, timings_of(result, model), trial.paths.trial_dir)

    def _trial_config(self, task: Task) -> TrialConfig:
        settings = self._settings
        return TrialConfig(
            task=TaskConfig(path=task.task_dir),
            trials_dir=settings.trials_dir,
            agent=AgentConfig(
                import_path=AGENT,
                model_name=settings.model_name,
                override_timeout_sec=settings.agent_timeout_seconds,
                kwargs={
                    "max_turns": settings.max_turns,
                    "enable_summarize": settings.enable_summarize,
                    "proactive_summarization_threshold": settings.proactive_summarization_threshold or 0,
                },
            ),
            environment=self._environment.model_copy(),
        )


def _environment_config(settings: RolloutSettings) -> EnvironmentConfig:
    options: dict[str, Any] = dict(settings.environment_settings)
    if settings.environment == "local":
        return EnvironmentConfig(import_path=LOCAL_ENVIRONMENT, kwargs=options)
    if ":" in settings.environment:
        return EnvironmentConfig(import_path=settings.environment, kwargs=options)
    try:
        kind = EnvironmentType(settings.environment)
    except ValueError as error:
        known = ", ".join(["local", *(each.value for each in EnvironmentType)])
        raise UserError(
            f"there is no sandbox of type '{settings.environment}'; there are {known}."
        ) from error
    return EnvironmentConfig(type=kind, kwargs=options)


def _rollout(
    task: Task, verdict: Verdict, model: PolicyModel, timings: Timings, trial_dir: Path | None = None
) -> Rollout:
    detail = verdict.detail
    if not verdict.outcome.scored and trial_dir is not None:
        detail = f"{detail}\n{_log_tails(trial_dir)}".rstrip()
    return Rollout(
        task_name=task.task_name,
        outcome=verdict.outcome,
        reward=verdict.reward,
        turns=tuple(model.turns),
        timings=timings,
        detail=detail,
        trial_dir=str(trial_dir or ""),
    )


def _log_tails(trial_dir: Path) -> str:
    tails = []
    for name, length in _TAILS:
        path = trial_dir / name
        if path.is_file():
            tails.append(path.read_text(errors="replace")[-length:])
    return "\n".join(tails)
