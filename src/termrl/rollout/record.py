"""The record of one attempt at a task: small, frozen, what the store keeps and the learner reads."""

from dataclasses import dataclass, field

from termrl.policy.transcript import Turn
from termrl.policy.usage import Usage
from termrl.rollout.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds spent in each phase; `model` is the part of `agent` spent waiting for the sampler."""

    setup: float = 0.0
    agent: float = 0.0
    model: float = 0.0
    verifier: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt. `reward` is None exactly when the outcome is not scored.

    `usage` is given where the turns are not at hand: agents whose model is not ours, and rollouts that were
    read without their turns.
    """

    task_name: str
    outcome: Outcome
    reward: float | None
    turns: tuple[Turn, ...]
    timings: Timings
    detail: str = ""
    trial_dir: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    usage: Usage | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if (self.reward is None) == self.outcome.scored:
            raise ValueError(f"a rollout that ended as {self.outcome} has reward {self.reward}")

    @property
    def sampled_tokens(self) -> int:
        return sum(turn.sampled_count for turn in self.turns)

    @property
    def prompt_tokens(self) -> int:
        return sum(turn.prompt_length for turn in self.turns)

    @property
    def segment_count(self) -> int:
        """Streams that were begun: one, and one more for each time that history was rewritten."""
        return sum(
            not turn.continues(before) for before, turn in zip((None, *self.turns), self.turns, strict=False)
        )

    @property
    def used(self) -> Usage:
        return self.usage or Usage(len(self.turns), self.prompt_tokens, self.sampled_tokens)

    @property
    def solved(self) -> bool:
        return self.outcome is Outcome.SOLVED
