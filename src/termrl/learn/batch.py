"""What a step's groups come to: lessons for the trainer, and the credit that each rollout was given.

A group is compared among the rollouts of it that were scored; those that the infrastructure lost are left
out of it. A group with fewer than two of them, or with rewards all alike, teaches nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from termrl.config import TrainConfig
from termrl.learn.advantages import is_constant, make_advantage
from termrl.learn.datums import Lesson, rollout_lessons
from termrl.learn.shaping import shaped_reward
from termrl.rollout.record import Rollout


@dataclass(frozen=True, slots=True)
class Credit:
    """What one rollout was worth to the learner: its group and place there, shaped reward, advantage."""

    group: int
    member: int
    shaped_reward: float
    advantage: float


@dataclass(frozen=True, slots=True)
class Batch:
    """The lessons of each rollout that has something to teach, and how the others fared."""

    rollout_lessons: list[list[Lesson]] = field(default_factory=list)
    credits: list[Credit] = field(default_factory=list)
    constant: int = 0
    too_small: int = 0

    def minibatches(self, count: int) -> list[list[Lesson]]:
        """The lessons in `count` disjoint parts, split by rollout; fewer where there are fewer rollouts."""
        parts = [self.rollout_lessons[index::count] for index in range(count)]
        return [[lesson for lessons in part for lesson in lessons] for part in parts if part]


def make_batch(
    groups: Sequence[Sequence[Rollout]],
    config: TrainConfig,
    *,
    step: int,
    first: int = 0,
    baseline: float | None = None,
) -> Batch:
    """The batch of these groups, of which the first is the step's group number `first`."""
    advantage_of = make_advantage(config, baseline)
    alone = config.advantage == "reinforce"
    taught: list[Rollout] = []
    credits: list[Credit] = []
    constant = small = 0
    for index, group in enumerate(groups, first):
        scored = [(member, rollout) for member, rollout in enumerate(group) if rollout.reward is not None]
        rewards = [shaped_reward(rollout, config.shaping) for _, rollout in scored]
        if config.shuffle_rewards:
            Random(f"{config.seed}/shuffle/{step}/{index}").shuffle(rewards)
        if len(rewards) < (1 if alone else 2):
            small += 1
            continue
        constant += is_constant(rewards)
        if is_constant(rewards) and config.remove_constant_reward_groups and not alone:
            continue
        advantages = advantage_of(rewards)
        for (member, rollout), reward, advantage in zip(scored, rewards, advantages, strict=True):
            taught.append(rollout)
            credits.append(Credit(index, member, reward, advantage))
    weights = rollout_weights(taught, config.loss_normalization)
    lessons = [
        rollout_lessons(rollout.turns, weight * credit.advantage)
        for rollout, credit, weight in zip(taught, credits, weights, strict=True)
    ]
    return Batch([each for each in lessons if each], credits, constant, small)


def rollout_weights(rollouts: Sequence[Rollout], normalization: str) -> list[float]:
    """What to multiply each rollout's advantage with, so that rollouts, or else tokens, weigh the same.

    The trainer sums over tokens: left alone, a rollout that fails at length outweighs one that succeeds in
    few words. The mean weight over tokens is 1 either way, so that one learning rate fits both.
    """
    lengths = [max(rollout.sampled_tokens, 1) for rollout in rollouts]
    if normalization == "token" or not lengths:
        return [1.0] * len(lengths)
    mean = sum(lengths) / len(lengths)
    return [mean / length for length in lengths]
