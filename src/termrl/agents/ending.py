"""How an agent's loop ended, and what a rollout asks of an agent that speaks for the policy."""

from enum import StrEnum
from typing import Protocol, runtime_checkable

from termrl.policy.asking import Policy


class Ending(StrEnum):
    """How the agent's loop ended, when it ended by itself."""

    COMPLETED = "completed"
    SESSION_CLOSED = "session_closed"
    TURN_LIMIT = "turn_limit"
    CONTEXT_EXHAUSTED = "context_exhausted"


@runtime_checkable
class PolicyAgent(Protocol):
    """An agent whose every answer is asked of the policy it was given."""

    ending: Ending | None
    parsed_answers: int
    """How many answers its format could be read from."""

    def attach(self, policy: Policy, *, write_trajectory: bool = True) -> None:
        """Gives the agent its policy; to be called once, between a trial's creation and its run."""
