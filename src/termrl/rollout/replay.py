"""A stored rollout's answers given again in a fresh sandbox, without a model.

What the agent is shown is compared with what it was shown then, turn by turn; so is the reward. The answers
are given as they were stored even after a difference, so that the first one is known for what it is.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from termrl.policy.sampler import ModelUnavailableError, SampledAnswer
from termrl.policy.tokenizer import Tokenizer
from termrl.policy.transcript import Turn
from termrl.rollout.record import Rollout
from termrl.rollout.runner import RolloutRunner, Task


class ReplaySampler:
    """Gives stored answers in order, and keeps the prompts it was asked with that differ from the stored."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self.calls = 0
        self.differing: dict[int, tuple[int, ...]] = {}

    @property
    def policy_version(self) -> int:
        return self._turns[0].policy_version if self._turns else 0

    def for_attempt(self) -> "ReplaySampler":
        return self

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        if self.calls >= len(self._turns):
            raise ModelUnavailableError(f"the stored rollout has {len(self._turns)} answers and no more")
        turn = self._turns[self.calls]
        if tuple(prompt) != turn.prompt:
            self.differing[self.calls] = tuple(prompt)
        self.calls += 1
        return SampledAnswer(turn.sampled, turn.logprobs, turn.stop_reason, 0.0)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first turn whose prompt is not what it was: counted from 1, and what changed in it."""

    turn: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplayReport:
    stored: Rollout
    replayed: Rollout
    turns_alike: int
    first_difference: Difference | None

    @property
    def same(self) -> bool:
        return (
            self.first_difference is None
            and len(self.stored.turns) == len(self.replayed.turns)
            and self.stored.reward == self.replayed.reward
        )


async def replay(runner: RolloutRunner, task: Task, stored: Rollout, tokenizer: Tokenizer) -> ReplayReport:
    sampler = ReplaySampler(stored.turns)
    replayed = await runner.run(task, sampler, seed=0)
    differing = min(sampler.differing, default=None)
    if differing is None:
        return ReplayReport(stored, replayed, sampler.calls, None)
    then, now = stored.turns[differing].prompt, sampler.differing[differing]
    before = stored.turns[differing].start
    # What both begin with is history; a difference is in what this turn added, unless that is new as well.
    common = before if now[:before] == then[:before] else 0
    lines = difflib.unified_diff(
        tokenizer.decode(list(then[common:])).splitlines(),
        tokenizer.decode(list(now[common:])).splitlines(),
        "stored",
        "replayed",
        lineterm="",
        n=1,
    )
    return ReplayReport(stored, replayed, differing, Difference(differing + 1, tuple(lines)))
