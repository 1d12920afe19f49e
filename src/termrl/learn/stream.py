"""Groups of rollouts, sampled ahead of the learner no further than the settings allow, given out when whole.

A group is in the ledger before its first rollout begins, and every rollout in the store before anyone sees
it. Groups that are drawn and not yet trained number at most (max_steps_off_policy + 1) batches: with 0 that
is the batch of the step itself, sampled from the weights it trains. A slow group may still lag further: by
the rule chosen it is trained on as it is, or drawn anew, or no younger group is taken that makes it late.
What infrastructure lost of a group is tried again while too few of it were scored.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

from termrl.config import TrainConfig
from termrl.learn.curriculum import Curriculum
from termrl.learn.feed import Feed
from termrl.learn.learner import Learner
from termrl.learn.training import STAGE, Training
from termrl.rollout.collect import rollout_seed
from termrl.rollout.record import Rollout
from termrl.store import Place
from termrl.store.ledger import DrawnGroup

REQUEUES = 2
"""How often what was lost of a group is sampled again, after the pool's own retries."""


@dataclass(frozen=True, slots=True)
class Group:
    """A whole group: every member has ended, one way or another."""

    drawn: DrawnGroup
    rollouts: tuple[Rollout, ...]

    @property
    def oldest_version(self) -> int:
        versions = (turn.policy_version for rollout in self.rollouts for turn in rollout.turns)
        return min(versions, default=self.drawn.version)


def min_group_size(config: TrainConfig) -> int:
    """Scored rollouts that a group needs."""
    least = max(2, (config.group_size + 1) // 2) if config.min_group_size is None else config.min_group_size
    return min(least, config.group_size)


class GroupStream:
    def __init__(
        self, training: Training, learner: Learner, curriculum: Curriculum, work: asyncio.TaskGroup
    ) -> None:
        self._training = training
        self._config = training.config
        self._learner = learner
        self._curriculum = curriculum
        self._work = work
        self._task_named = {task.task_name: task for task in training.tasks}
        self._drawn = training.run.ledger.groups()
        replaced = {group.in_place_of for group in self._drawn.values()}
        self._entered = training.run.ledger.batches()
        self._open = {
            number: None
            for number in self._drawn
            if number not in replaced and self._entered.get(number, learner.version) >= learner.version
        }
        """The groups that are drawn, still to be trained on, and not drawn anew as others; in order."""
        self._feed: Feed | None = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self._whole: list[Group] = []
        self._more_whole = asyncio.Event()
        self._given = {number for number in self._open if number in self._entered}
        """The open groups that are a step's already, or were given out for it."""
        self._sampled_tokens = 0
        self._began = time.monotonic()

    def stored(self, step: int) -> list[Group]:
        """The groups that the ledger has for a step already, as they are in the store."""
        return [self._from_store(number) for number in self._training.run.ledger.batch(step)]

    def _from_store(self, number: int) -> Group:
        place = self._place(number)
        rollouts = self._training.run.group(STAGE, place.step, place.group)
        return Group(self._drawn[number], tuple(rollouts.values()))

    async def refill(self) -> None:
        """Takes the newest weights to sample from, and draws as many new groups as there is room for."""
        newest = await self._learner.sampler(self._training.stop_tokens)
        if self._feed is None:
            self._feed = Feed(newest, follow=self._config.partial_rollouts)
            self._begin(number for number in self._open if number not in self._entered)
        self._feed.newest = newest
        ahead = (self._config.max_steps_off_policy + 1) * self._config.batch_size
        to_train = (self._training.steps - self._learner.version) * self._config.batch_size
        room = min(ahead, to_train) - len(self._open)
        taken = [self._drawn[number].task_name for number in self._open]
        fresh: list[DrawnGroup] = []
        for number in range(self._next_number, self._next_number + room):
            task = self._curriculum.draw(number, taken)
            taken.append(task.task_name)
            fresh.append(DrawnGroup(number, task.task_name, self._learner.version))
        self._draw(fresh)

    @property
    def _next_number(self) -> int:
        return max(self._drawn, default=-1) + 1

    def _draw(self, fresh: list[DrawnGroup]) -> None:
        self._training.run.ledger.draw(fresh)
        for group in fresh:
            self._drawn[group.number] = group
            self._open[group.number] = None
        self._begin(group.number for group in fresh)

    def _begin(self, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            self._running[number] = self._work.create_task(self._sample(self._drawn[number]))

    async def next(self) -> Group:
        """The next whole group, in the order in which they become so as far as the rule on lag allows."""
        while True:
            group = next((each for each in self._whole if self._timely(each)), None)
            if group is None:
                self._more_whole.clear()
                await self._more_whole.wait()
                continue
            self._whole.remove(group)
            lag = self._learner.version - group.oldest_version
            if self._config.stale_rollouts != "requeue" or lag <= self._config.max_steps_off_policy:
                self._given.add(group.drawn.number)
                return group
            self._training.progress.note(
                f"A group of {group.drawn.task_name} lags {lag} versions: it is drawn anew."
            )
            again = DrawnGroup(
                self._next_number, group.drawn.task_name, self._learner.version, group.drawn.number
            )
            del self._open[group.drawn.number]
            self._draw([again])

    def _timely(self, group: Group) -> bool:
        """Whether no other group must lag further than it may when this one is trained on next."""
        if self._config.stale_rollouts != "wait":
            return True
        versions = [self._drawn[number].version for number in self._open if number not in self._given]
        if group.drawn.version == min(versions):
            return True
        taken = len(self._given) + 1
        for version in range(self._learner.version - self._config.max_steps_off_policy, group.drawn.version):
            steps = version + self._config.max_steps_off_policy - self._learner.version + 1
            waiting = sum(each <= version for each in versions)
            if waiting > steps * self._config.batch_size - taken:
                return False
        return True

    def enter(self, step: int, position: int, groups: list[Group]) -> None:
        """These groups are the step's from here on."""
        numbers = [group.drawn.number for group in groups]
        self._training.run.ledger.enter(step, position, numbers)

    def trained(self, groups: Iterable[Group]) -> None:
        """The step of these groups was applied: there is room for others."""
        for group in groups:
            self._open.pop(group.drawn.number, None)
            self._given.discard(group.drawn.number)

    def close(self) -> None:
        """Breaks off what is not needed any more; what is stored stays."""
        for task in self._running.values():
            task.cancel()

    async def _sample(self, drawn: DrawnGroup) -> None:
        place = self._place(drawn.number)
        have = self._training.run.group(STAGE, place.step, place.group)
        for _ in range(REQUEUES + 1):
            wanted = [member for member in range(self._config.group_size) if member not in have]
            if not wanted and sum(each.outcome.scored for each in have.values()) < min_group_size(
                self._config
            ):
                wanted = [member for member, rollout in have.items() if not rollout.outcome.scored]
                self._training.progress.note(
                    f"{drawn.task_name}: infrastructure lost {len(wanted)} of {self._config.group_size} "
                    "rollouts, so those are sampled again."
                )
            if not wanted:
                break
            async with asyncio.TaskGroup() as members:
                tasks = {
                    member: members.create_task(
                        self._obtain(drawn, Place(STAGE, place.step, place.group, member))
                    )
                    for member in wanted
                }
            have |= {member: task.result() for member, task in tasks.items()}
        self._whole.append(Group(drawn, tuple(have[member] for member in sorted(have))))
        self._more_whole.set()

    async def _obtain(self, drawn: DrawnGroup, place: Place) -> Rollout:
        assert self._feed is not None
        training = self._training
        rollout = await training.pool.run(
            self._task_named[drawn.task_name], self._feed, seed=rollout_seed(self._config.seed, place)
        )
        training.run.add_rollout(place, rollout)
        training.meter.check()
        self._sampled_tokens += rollout.sampled_tokens
        training.progress.numbers(
            sandboxes=training.pool.in_flight,
            tokens_per_second=self._sampled_tokens / max(time.monotonic() - self._began, 1e-9),
        )
        return rollout

    def _place(self, number: int) -> Place:
        return Place(STAGE, *divmod(number, self._config.batch_size), 0)
