"""What a step will take, before anything is spent: from a few scripted rollouts in real sandboxes.

Two figures each: as the scripts went, and the most that the settings allow (every rollout with all its turns,
every answer at its full length, up to the context). Time is that of the sandboxes: how fast the model answers
is not known before it is asked.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from termrl.config import TrainConfig
from termrl.learn.datums import rollout_lessons
from termrl.learn.meter import Spent
from termrl.learn.prices import Prices
from termrl.rollout.record import Rollout


@dataclass(frozen=True, slots=True)
class Estimate:
    """A step as the scripts went and at most, what each would cost, and what it was made from."""

    scripted: Spent
    most: Spent
    prices: Prices
    rollouts: int
    solved: int
    in_a_step: int
    steps: int

    def lines(self) -> list[str]:
        """The estimate as a person reads it."""
        rows = [
            ("prefill tokens", self.scripted.prefill_tokens, self.most.prefill_tokens),
            ("sampled tokens", self.scripted.sampled_tokens, self.most.sampled_tokens),
            ("trained tokens", self.scripted.trained_tokens, self.most.trained_tokens),
        ]
        cost, most = self.scripted.cost(self.prices), self.most.cost(self.prices)
        dollars = "not known: name a file of prices by prices="
        if cost is not None and most is not None:
            whole = f"${cost * self.steps:.2f} to ${most * self.steps:.2f} for {self.steps} steps"
            dollars = f"${cost:.4f} to ${most:.4f} ({whole})"
        seconds = f"{self.scripted.sandbox_seconds:.0f} s in sandboxes, {self.scripted.seconds:.0f} s to wait"
        return [
            "Dry run: all that can be checked is in order, and nothing was spent.",
            f"A step of {self.in_a_step} rollouts, as {self.rollouts} scripted ones went "
            f"({self.solved} solved) and at most:",
            *(f"  {name:<16}{low:>14,} to {high:,}" for name, low, high in rows),
            f"  {'time':<16}{seconds}, and the model's answers",
            f"  {'cost':<16}{dollars}",
        ]


def estimate_step(
    rollouts: Sequence[Rollout], config: TrainConfig, prices: Prices, context: int, steps: int
) -> Estimate:
    """The estimate for a step from scripted rollouts, in proportion."""
    count = config.batch_size * config.group_size
    share = count / len(rollouts)
    trained = sum(lesson.length for rollout in rollouts for lesson in rollout_lessons(rollout.turns, 0.0))
    seconds = sum(rollout.timings.total for rollout in rollouts) / len(rollouts)
    waves = math.ceil(count / config.n_parallel_envs)
    scripted = Spent(
        prefill_tokens=round(share * sum(rollout.prompt_tokens for rollout in rollouts)),
        sampled_tokens=round(share * sum(rollout.sampled_tokens for rollout in rollouts)),
        trained_tokens=round(share * trained),
        sandbox_seconds=seconds * count,
        seconds=seconds * waves,
    )
    first = max(len(rollout.turns[0].prompt) for rollout in rollouts if rollout.turns)
    seen = max((_observed(rollout) for rollout in rollouts), default=0)
    prompts = [min(first + turn * (config.max_tokens + seen), context) for turn in range(config.max_turns)]
    answers = [min(config.max_tokens, context - prompt) for prompt in prompts]
    most = Spent(
        prefill_tokens=count * sum(prompts),
        sampled_tokens=count * sum(answers),
        trained_tokens=count * (prompts[-1] + answers[-1]),
        sandbox_seconds=scripted.sandbox_seconds,
        seconds=scripted.seconds,
    )
    solved = sum(rollout.solved for rollout in rollouts)
    return Estimate(scripted, most, prices, len(rollouts), solved, count, steps)


def _observed(rollout: Rollout) -> int:
    """The most tokens of screen that a turn of the rollout added to the prompt."""
    pairs = zip(rollout.turns, rollout.turns[1:], strict=False)
    return max((len(after.prompt) - len(before.tokens) for before, after in pairs), default=0)
