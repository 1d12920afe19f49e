"""What a finished trial means: its outcome, its reward, and whose doing the ending was.

A reward from the verifier makes it the policy's rollout, scored by how its agent ended. Without one, the
phase the trial broke in says which part of the infrastructure failed.
"""

from dataclasses import dataclass
from datetime import datetime

from harbor.models.trial.result import StepResult, TimingInfo, TrialResult

from termrl.agents.model import PolicyModel
from termrl.agents.terminus import Ending, PolicyTerminus2
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Timings

FULL_REWARD = 1.0

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


def judge(
    result: TrialResult, agent: PolicyTerminus2, model: PolicyModel, agent_timeout: float | None
) -> Verdict:
    """The outcome of a trial that ran to its end, well or badly."""
    if model.failure is not None:
        return Verdict(Outcome.MODEL_UNAVAILABLE, None, str(model.failure))
    reward = _reward(result)
    if reward is None:
        return Verdict(_broken_phase(result), None, _exception(result))
    if reward >= FULL_REWARD:
        return Verdict(Outcome.SOLVED, reward)
    if _timed_out(result):
        if agent_timeout is not None and model.unanswered_seconds > agent_timeout / 2:
            waited = f"a call to the model had waited {model.unanswered_seconds:.0f} s when time was up"
            return Verdict(Outcome.MODEL_UNAVAILABLE, None, waited)
        return Verdict(Outcome.AGENT_TIMEOUT, reward, _exception(result))
    if model.turns and not agent.parsed_answers:
        return Verdict(Outcome.UNPARSABLE, reward)
    return Verdict(_ENDINGS.get(agent.ending or Ending.COMPLETED, Outcome.FAILED), reward)


def timings_of(result: TrialResult, model: PolicyModel) -> Timings:
    steps = result.step_results or []
    return Timings(
        setup=_seconds(result.environment_setup) + _seconds(result.agent_setup),
        agent=_seconds(result.agent_execution) + sum(_seconds(step.agent_execution) for step in steps),
        model=sum(turn.seconds for turn in model.turns),
        verifier=_seconds(result.verifier) + sum(_seconds(step.verifier) for step in steps),
        total=_between(result.started_at, result.finished_at),
    )


def _reward(result: TrialResult) -> float | None:
    rewards = result.verifier_result.rewards if result.verifier_result is not None else None
    if not rewards:
        return None
    if "reward" in rewards:
        return float(rewards["reward"])
    return sum(float(value) for value in rewards.values()) / len(rewards)


def _broken_phase(result: TrialResult) -> Outcome:
    last: TrialResult | StepResult = result.step_results[-1] if result.step_results else result
    if last.verifier is not None:
        return Outcome.VERIFIER_FAILED
    if last.agent_execution is not None or result.agent_setup is not None:
        return Outcome.SANDBOX_LOST
    return Outcome.BUILD_FAILED


def _timed_out(result: TrialResult) -> bool:
    last: TrialResult | StepResult = result.step_results[-1] if result.step_results else result
    return last.exception_info is not None and last.exception_info.exception_type == "AgentTimeoutError"


def _exception(result: TrialResult) -> str:
    steps = result.step_results or []
    for info in (result.exception_info, *(step.exception_info for step in steps)):
        if info is not None:
            return f"{info.exception_type}: {info.exception_message}"
    return "no reason was recorded"


def _seconds(timing: TimingInfo | None) -> float:
    return _between(timing.started_at, timing.finished_at) if timing is not None else 0.0


def _between(start: datetime | None, end: datetime | None) -> float:
    return (end - start).total_seconds() if start is not None and end is not None else 0.0
