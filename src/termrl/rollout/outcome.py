"""The closed set of ways a rollout can end, and whose doing each one is.

What the policy caused is scored. What the infrastructure caused is retried and then excluded by name:
it is never reward 0, and it never takes its group down. docs/outcomes.md says what is done about each.
"""

from enum import StrEnum


class Outcome(StrEnum):
    SOLVED = "solved"
    FAILED = "failed"
    AGENT_TIMEOUT = "agent_timeout"
    TURN_LIMIT = "turn_limit"
    CONTEXT_EXHAUSTED = "context_exhausted"
    UNPARSABLE = "unparsable"
    RESOURCE_LIMIT = "resource_limit"
    TAMPERED = "tampered"

    SANDBOX_LOST = "sandbox_lost"
    MODEL_UNAVAILABLE = "model_unavailable"
    VERIFIER_FAILED = "verifier_failed"
    BUILD_FAILED = "build_failed"
    CANCELLED = "cancelled"

    @property
    def scored(self) -> bool:
        return self not in INFRASTRUCTURE


INFRASTRUCTURE = frozenset(
    {
        Outcome.SANDBOX_LOST,
        Outcome.MODEL_UNAVAILABLE,
        Outcome.VERIFIER_FAILED,
        Outcome.BUILD_FAILED,
        Outcome.CANCELLED,
    }
)
