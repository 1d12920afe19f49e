"""One step: its groups as they become whole, what is made of them, the update, and what to say of it.

On-policy, the groups are trained on in the order they were drawn in, whichever was first: so the step is a
function of its rollouts alone. When groups are streamed, each is trained on as soon as it is whole, and the
ledger keeps that order.
"""

import time
from typing import Any

from termrl.learn.advantages import running_baseline
from termrl.learn.batch import Batch, make_batch
from termrl.learn.datums import Lesson
from termrl.learn.numbers import batch_numbers, rollout_numbers
from termrl.learn.schedule import adam_at
from termrl.learn.shaping import shaped_reward
from termrl.learn.stream import Group, GroupStream
from termrl.learn.training import Training
from termrl.learn.update import Teaching, Update


class Step:
    def __init__(
        self, training: Training, teaching: Teaching, stream: GroupStream, number: int, baseline: float | None
    ) -> None:
        self._training = training
        self._config = training.config
        self._teaching = teaching
        self._stream = stream
        self._baseline = baseline
        self._batches: list[Batch] = []
        self._numbers: dict[str, Any] = {}
        self._spent_before = training.meter.spent
        self._version = teaching.learner.version
        self._began = self._trained = time.monotonic()
        self._waited = self._refilled = 0.0
        self.number = number
        self.groups: list[Group] = []

    async def train(self) -> bool:
        """Gets the groups and applies the step; False where the run was to end before it was."""
        config = self._config
        update = Update(self._teaching, adam_at(self.number, self._training.steps, config))
        self.groups = self._stream.stored(self.number)
        if len(self.groups) < config.batch_size:
            await self._stream.refill()
            self._refilled = time.monotonic() - self._began
        trained = await (
            self._stream_through(update) if self._teaching.streams else self._train_whole(update)
        )
        if not trained:
            return False
        self._numbers |= await update.finish()
        self._trained = time.monotonic()
        if not update.taught:
            self._training.progress.note(
                f"Step {self.number}: no group had rewards that differ, so nothing was trained."
            )
        return True

    async def _train_whole(self, update: Update) -> bool:
        """Waits for all groups, then trains on them in minibatches split by rollout."""
        if not self.groups:
            if not await self._wait_for(self._config.batch_size):
                return False
            if self._config.max_steps_off_policy == 0:
                self.groups.sort(key=lambda group: group.drawn.number)
            self._stream.enter(self.number, 0, self.groups)
        batch = await self._make(self.groups, 0)
        for minibatch in batch.minibatches(self._config.num_substeps):
            await update.add(minibatch)
            await update.step()
        return True

    async def _stream_through(self, update: Update) -> bool:
        """Trains on each group as soon as it is whole; an update after every so many."""
        for position in range(self._config.batch_size):
            if position >= len(self.groups):
                if not await self._wait_for(position + 1):
                    return False
                self._stream.enter(self.number, position, self.groups[position:])
            batch = await self._make([self.groups[position]], position)
            await update.add(_lessons(batch))
            if (position + 1) % (self._config.batch_size // self._config.num_substeps) == 0:
                await update.step()
        return True

    async def _wait_for(self, count: int) -> bool:
        began = time.monotonic()
        while len(self.groups) < count:
            group = await self._training.stop.unless_over(self._stream.next())
            if group is None:
                return False
            self.groups.append(group)
        self._waited += time.monotonic() - began
        return True

    async def _make(self, groups: list[Group], first: int) -> Batch:
        rollouts = [group.rollouts for group in groups]
        batch = make_batch(rollouts, self._config, step=self.number, first=first, baseline=self._baseline)
        batch, numbers = await self._teaching.prepare(batch)
        self._numbers |= numbers
        self._batches.append(batch)
        return batch

    @property
    def baseline_after(self) -> float | None:
        """The running baseline of rewards, this step's among them."""
        rewards = [
            shaped_reward(rollout, self._config.shaping)
            for group in self.groups
            for rollout in group.rollouts
            if rollout.reward is not None
        ]
        return running_baseline(self._baseline, rewards, self._config.baseline_decay)

    def credits(self) -> list[tuple[int, int, float, float]]:
        """What each rollout was worth, for the ledger."""
        return [
            (self.groups[credit.group].drawn.number, credit.member, credit.shaped_reward, credit.advantage)
            for batch in self._batches
            for credit in batch.credits
        ]

    def metrics(self) -> dict[str, Any]:
        """All there is to say of the step, but for its times."""
        spent, before = self._training.meter.spent, self._spent_before
        cost, cost_before = (each.cost(self._training.meter.prices) for each in (spent, before))
        return {
            "step": self.number,
            **rollout_numbers([group.rollouts for group in self.groups], self._version),
            **batch_numbers(self._batches),
            **self._numbers,
            "reward_baseline": self.baseline_after,
            "tokens_total": spent.tokens,
            "cost": None if cost is None or cost_before is None else cost - cost_before,
            "cost_total": cost,
        }

    def seconds(self) -> dict[str, float]:
        """Where the step's time went; to be asked when the step is over."""
        now = time.monotonic()
        sampled = sum(rollout.sampled_tokens for group in self.groups for rollout in group.rollouts)
        return {
            "seconds_weights": self._refilled,
            "seconds_sampling": self._waited,
            "seconds_training": self._trained - self._began - self._waited - self._refilled,
            "seconds_saving": now - self._trained,
            "seconds": now - self._began,
            "tokens_per_second": sampled / max(now - self._began, 1e-9),
        }


def _lessons(batch: Batch) -> list[Lesson]:
    return [lesson for rollout in batch.rollout_lessons for lesson in rollout]
