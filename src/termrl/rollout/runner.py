"""One attempt at one task: a Harbor trial with the policy as its agent's model, read as a rollout.

Whatever goes wrong inside a trial becomes the rollout's outcome; only what would break every other
rollout too (`UserError`) and the rollout's own cancellation come out as exceptions.
"""

import asyncio
import shutil
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import TrialResult

from termrl.agents.choice import OURS, import_path_of
from termrl.agents.ending import PolicyAgent
from termrl.agents.gateway import Gateway, GatewayAccess
from termrl.errors import UserError
from termrl.policy.asking import Policy
from termrl.policy.budget import ContextBudget
from termrl.policy.chat import OutsideSampler
from termrl.policy.rendering import Renderer
from termrl.policy.sampler import Sampler
from termrl.policy.usage import Usage
from termrl.rollout.doorway import Doorway
from termrl.rollout.gate import wait_at_the_gate
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.rollout.references import References
from termrl.rollout.reward import Graded, RewardRule, call_reward_function, load_reward_function
from termrl.rollout.settings import LOCAL_ENVIRONMENT, RolloutSettings
from termrl.rollout.trial import LastWord, create_trial, tests_read_agent_logs
from termrl.rollout.verdict import Evidence, Verdict, broke, judge, timings_of, verifier_rewards
from termrl.rollout.verification import Guard
from termrl.sandbox.interface import HarborSandbox

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
        self._agent_path = import_path_of(settings.agent)
        self._rule = RewardRule.parse(settings.reward)
        self._reward_function = load_reward_function(settings.reward_fn)
        self._references = References(settings.trials_dir, self._environment)
        self._gateway = Gateway(settings.gateway_url, settings.gateway_port, settings.gateway_tunnel)
        self._verifier_failures: Counter[Path] = Counter()

    async def close(self) -> None:
        await self._gateway.stop()

    async def run(self, task: Task, sampler: Sampler, *, seed: int) -> Rollout:
        """One attempt, whatever its outcome; raises `UserError` when no other attempt could do better."""
        outside = isinstance(sampler, OutsideSampler)
        policy = (
            sampler.policy(self._budget, seed)
            if isinstance(sampler, OutsideSampler)
            else Policy(sampler.for_attempt(), self._renderer, self._budget, seed)
        )
        async with AsyncExitStack() as stack:
            access: GatewayAccess | None = None
            if self._settings.agent not in OURS and not outside:
                access = await stack.enter_async_context(
                    self._gateway.access(
                        policy, max_turns=self._settings.max_turns, model_name=self._settings.model_name
                    )
                )
            try:
                keep = self._settings.keep_trials != "none"
                trial = await create_trial(self._trial_config(task, access), keep=keep)
            except UserError:
                raise
            except Exception as error:
                failed = Verdict(Outcome.BUILD_FAILED, None, f"{type(error).__name__}: {error}")
                return _rollout(task, failed, policy, Timings())
            kept = self._settings.keep_trials == "all"
            try:
                rollout = await self._run_trial(task, trial, policy, access)
                kept = kept or (self._settings.keep_trials == "failed" and not rollout.solved)
                return rollout
            finally:
                if not kept:
                    await asyncio.to_thread(shutil.rmtree, trial.paths.trial_dir, ignore_errors=True)

    async def _run_trial(
        self, task: Task, trial: LastWord, policy: Policy, access: GatewayAccess | None
    ) -> Rollout:
        if isinstance(trial.agent, PolicyAgent):
            reads_logs = tests_read_agent_logs(task.task_dir / "tests")
            keep = self._settings.keep_trials != "none"
            trial.agent.attach(policy, write_trajectory=keep or reads_logs)
        guard = Guard(trial)
        evidence = Evidence(policy)
        trial.call_before_stop(lambda: self._grade(task, trial, guard, evidence))
        wait_at_the_gate(trial)
        doorway = Doorway(trial, self._gateway) if access is not None else None
        try:
            result: TrialResult = await trial.run()
        except asyncio.CancelledError:
            if _is_being_cancelled():
                raise
            ended = Verdict(
                Outcome.CANCELLED, None, "a part of it was cancelled, though nobody stopped the run"
            )
            return _rollout(task, ended, policy, Timings(), trial.paths.trial_dir)
        except Exception as error:
            lost = Verdict(Outcome.SANDBOX_LOST, None, f"{type(error).__name__}: {error}")
            return _rollout(task, lost, policy, Timings(), trial.paths.trial_dir)
        finally:
            if doorway is not None:
                await doorway.close()
        if isinstance(policy.failure, UserError):
            raise policy.failure
        self._gather(evidence, trial, access)
        evidence.blinded = guard.blinded
        if guard.signs:
            allowed = await self._references.own_changes(task.task_dir)
            evidence.tampering = [sign for sign in guard.signs if sign not in allowed]
        verdict = await self._blame(task, judge(result, evidence, self._rule))
        rollout = _rollout(task, verdict, policy, timings_of(result, policy), trial.paths.trial_dir)
        if self._settings.agent not in OURS and access is None:
            return replace(rollout, usage=_reported_usage(result))
        return rollout

    def _gather(self, evidence: Evidence, trial: LastWord, access: GatewayAccess | None) -> None:
        evidence.agent_timeout = trial.agent_timeout_sec
        if isinstance(trial.agent, PolicyAgent):
            evidence.ending = trial.agent.ending
            evidence.unparsable = bool(evidence.policy.turns) and not trial.agent.parsed_answers
        elif access is not None:
            evidence.ending = access.ending

    async def _grade(self, task: Task, trial: LastWord, guard: Guard, evidence: Evidence) -> None:
        """While the sandbox is still there: how it fares, who rewrites rewards, the user's own grader."""
        exhausted = getattr(trial.agent_environment, "exhausted", None)
        if exhausted is not None and broke(trial.result):
            evidence.exhausted = await exhausted()
        try:
            await guard.look_for_a_rewriter()
            if self._reward_function is not None:
                graded = Graded(
                    task.task_name, task.task_dir, evidence.policy.turns, verifier_rewards(trial.result)
                )
                sandbox = HarborSandbox(trial.agent_environment)
                evidence.own_reward = await call_reward_function(self._reward_function, graded, sandbox)
        except Exception as error:
            if self._reward_function is not None:
                evidence.own_failure = f"the reward function failed: {type(error).__name__}: {error}"

    async def _blame(self, task: Task, verdict: Verdict) -> Verdict:
        """A verifier that works in a fresh sandbox and fails twice after agents' work was broken by it."""
        if verdict.outcome is not Outcome.VERIFIER_FAILED or self._reward_function is not None:
            return verdict
        self._verifier_failures[task.task_dir] += 1
        if self._verifier_failures[task.task_dir] < 2:
            return verdict
        if not await self._references.verifier_is_sound(task.task_dir):
            return verdict
        detail = f"the verifier works in a fresh sandbox, but not after the agent's work: {verdict.detail}"
        return replace(verdict, outcome=Outcome.FAILED, reward=0.0, detail=detail)

    def _trial_config(self, task: Task, access: GatewayAccess | None) -> TrialConfig:
        settings = self._settings
        ours = settings.agent in OURS
        return TrialConfig(
            task=TaskConfig(path=task.task_dir),
            trials_dir=settings.trials_dir,
            timeout_multiplier=settings.timeout_multiplier,
            agent=AgentConfig(
                name=None if self._agent_path else settings.agent,
                import_path=self._agent_path,
                model_name=settings.model_name if access is None else f"openai/{settings.model_name}",
                override_timeout_sec=settings.agent_timeout_seconds,
                kwargs={**(_our_kwargs(settings) if ours else {}), **dict(settings.agent_kwargs)},
                env=access.env if access is not None else {},
            ),
            environment=self._environment.model_copy(),
        )


def _is_being_cancelled() -> bool:
    """Whether it is this rollout that is to end, and not something that it waited for that was ended."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _our_kwargs(settings: RolloutSettings) -> dict[str, Any]:
    if settings.agent == "bash":
        return {"max_turns": settings.max_turns}
    return {
        "max_turns": settings.max_turns,
        "enable_summarize": settings.enable_summarize,
        "proactive_summarization_threshold": settings.proactive_summarization_threshold or 0,
        "early_return": settings.early_return,
        "interleaved_thinking": settings.keep_thinking,
    }


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
    task: Task, verdict: Verdict, policy: Policy, timings: Timings, trial_dir: Path | None = None
) -> Rollout:
    detail = verdict.detail
    if not verdict.outcome.scored and trial_dir is not None:
        detail = f"{detail}\n{_log_tails(trial_dir)}".rstrip()
    return Rollout(
        task_name=task.task_name,
        outcome=verdict.outcome,
        reward=verdict.reward,
        turns=tuple(policy.turns),
        timings=timings,
        detail=detail,
        trial_dir=str(trial_dir or ""),
        usage=policy.usage,
    )


def _reported_usage(result: TrialResult) -> Usage:
    """What an agent with a model of its own says that it used; it does not say in how many calls."""
    prompt, _, sampled, cost = result.compute_token_cost_totals()
    return Usage(0, prompt or 0, sampled or 0, cost)


def _log_tails(trial_dir: Path) -> str:
    tails = []
    for name, length in _TAILS:
        path = trial_dir / name
        if path.is_file():
            tails.append(path.read_text(errors="replace")[-length:])
    return "\n".join(tails)
