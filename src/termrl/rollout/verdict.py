"""What a finished trial means: its outcome, its reward, and whose doing the ending was.

A reward from the verifier makes it the policy's rollout, scored by how its agent ended. Without one, the
phase the trial broke in says which part of the infrastructure failed. An agent that was seen tampering has
reward 0, whatever else happened.
"""

from dataclasses import dataclass, field
from datetime import datetime

from harbor.models.trial.result import ExceptionInfo, StepResult, TimingInfo, TrialResult

from termrl.agents.ending import Ending
from termrl.policy.asking import Policy
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Timings
from termrl.rollout.reward import RewardRule

FULL_REWARD = 1.0
_BLINDED = "what looks for the agent's changes was killed in the sandbox: out of memory, or by the agent"

_ENDINGS = {
    Ending.TURN_LIMIT: Outcome.TURN_LIMIT,
    Ending.CONTEXT_EXHAUSTED: Outcome.CONTEXT_EXHAUSTED,
    Ending.COMPLETED: Outcome.FAILED,
    Ending.SESSION_CLOSED: Outcome.FAILED,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    reward: float | None
    detail: str = ""


@dataclass(slots=True)
class Evidence:
    """What is known of a trial beside its result."""

    policy: Policy
    ending: Ending | None = None
    unparsable: bool = False
    """The agent has a format, and not one answer was in it."""
    agent_timeout: float | None = None
    tampering: list[str] = field(default_factory=list)
    blinded: bool = False
    """What looks for tampering was killed in the sandbox, so there may have been some."""
    exhausted: str | None = None
    """How the agent's own use ended its sandbox, if it did."""
    own_reward: float | None = None
    """What a reward function of the user's own said."""
    own_failure: str | None = None
    """Why it said nothing."""


def judge(result: TrialResult, evidence: Evidence, rule: RewardRule) -> Verdict:
    """The outcome of a trial that ran to its end, well or badly."""
    policy = evidence.policy
    if policy.failure is not None:
        return Verdict(Outcome.MODEL_UNAVAILABLE, None, str(policy.failure))
    if evidence.blinded:
        return Verdict(Outcome.RESOURCE_LIMIT, 0.0, evidence.exhausted or _BLINDED)
    if evidence.tampering:
        # Where memory ran out, a part of what looks for changes may have been killed.
        if evidence.exhausted is not None:
            return Verdict(Outcome.RESOURCE_LIMIT, 0.0, evidence.exhausted)
        return Verdict(Outcome.TAMPERED, 0.0, f"changed by the agent: {', '.join(evidence.tampering)}")
    if evidence.own_failure is not None:
        return Verdict(Outcome.VERIFIER_FAILED, None, evidence.own_failure)
    reward = evidence.own_reward if evidence.own_reward is not None else _reward(result, rule)
    if reward is None and evidence.exhausted is not None:
        return Verdict(Outcome.RESOURCE_LIMIT, 0.0, evidence.exhausted)
    if reward is None:
        return Verdict(_broken_phase(result), None, _exception(result))
    if reward >= FULL_REWARD:
        return Verdict(Outcome.SOLVED, reward)
    if _timed_out(result):
        timeout = evidence.agent_timeout
        if timeout is not None and policy.unanswered_seconds > timeout / 2:
            waited = f"a call to the model had waited {policy.unanswered_seconds:.0f} s when time was up"
            return Verdict(Outcome.MODEL_UNAVAILABLE, None, waited)
        return Verdict(Outcome.AGENT_TIMEOUT, reward, _exception(result))
    if evidence.unparsable:
        return Verdict(Outcome.UNPARSABLE, reward)
    return Verdict(_ENDINGS[evidence.ending or Ending.COMPLETED], reward)


def timings_of(result: TrialResult, policy: Policy) -> Timings:
    steps = result.step_results or []
    return Timings(
        setup=_seconds(result.environment_setup) + _seconds(result.agent_setup),
        agent=_seconds(result.agent_execution) + sum(_seconds(step.agent_execution) for step in steps),
        model=sum(turn.seconds for turn in policy.turns),
        verifier=_seconds(result.verifier) + sum(_seconds(step.verifier) for step in steps),
        total=_between(result.started_at, result.finished_at),
    )


def verifier_rewards(result: TrialResult) -> dict[str, float]:
    rewards = result.verifier_result.rewards if result.verifier_result is not None else None
    return {name: float(value) for name, value in (rewards or {}).items()}


def broke(result: TrialResult) -> bool:
    """Whether any phase ended with an exception."""
    return bool(_exceptions(result))


def _reward(result: TrialResult, rule: RewardRule) -> float | None:
    rewards = verifier_rewards(result)
    return rule.of(rewards) if rewards else None


def _broken_phase(result: TrialResult) -> Outcome:
    last: TrialResult | StepResult = result.step_results[-1] if result.step_results else result
    if last.agent_execution is None and result.agent_setup is None:
        return Outcome.BUILD_FAILED
    lost = any("SandboxLost" in info.exception_traceback for info in _exceptions(result))
    return Outcome.VERIFIER_FAILED if last.verifier is not None and not lost else Outcome.SANDBOX_LOST


def _timed_out(result: TrialResult) -> bool:
    last: TrialResult | StepResult = result.step_results[-1] if result.step_results else result
    return last.exception_info is not None and last.exception_info.exception_type == "AgentTimeoutError"


def _exceptions(result: TrialResult) -> list[ExceptionInfo]:
    steps = result.step_results or []
    infos = (result.exception_info, *(step.exception_info for step in steps))
    return [info for info in infos if info is not None]


def _exception(result: TrialResult) -> str:
    for info in _exceptions(result):
        return f"{info.exception_type}: {info.exception_message}"
    return "no reason was recorded"


def _seconds(timing: TimingInfo | None) -> float:
    return _between(timing.started_at, timing.finished_at) if timing is not None else 0.0


def _between(start: datetime | None, end: datetime | None) -> float:
    return (end - start).total_seconds() if start is not None and end is not None else 0.0
