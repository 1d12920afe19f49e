"""One step's passes and optimizer updates, each queued before the one before it has returned.

Lessons go in as they are there: with gradients added up until the next update. What a pass needs first (the
reference's logprobs, the old ones at another temperature, a custom loss's gradient) is got before it is
queued.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tinker

from termrl.config import TrainConfig
from termrl.learn.batch import Batch
from termrl.learn.custom_loss import check_gradient
from termrl.learn.datums import Lesson
from termrl.learn.learner import Learner
from termrl.learn.losses import find_custom_loss
from termrl.learn.numbers import policy_numbers
from termrl.learn.reference import Reference
from termrl.learn.temperature import LEARNER


@dataclass(frozen=True)
class Teaching:
    """How lessons are taught throughout a run."""

    learner: Learner
    config: TrainConfig
    reference: Reference | None = None
    logprobs_of: str = "server"

    @property
    def streams(self) -> bool:
        """Whether groups are trained on one by one, as each is whole."""
        config = self.config
        wanted = config.max_steps_off_policy > 0 if config.stream_groups is None else config.stream_groups
        # Old logprobs that the learner computes are those from before the first update of a step.
        at_once = self.logprobs_of == LEARNER and config.num_substeps > 1
        return wanted and config.batch_size % config.num_substeps == 0 and not at_once

    async def prepare(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """The batch with old logprobs and the penalty to the reference in place, and figures about them."""
        lessons = [lesson for rollout in batch.rollout_lessons for lesson in rollout]
        numbers: dict[str, float] = {}
        if self.logprobs_of == LEARNER and lessons:
            found = await self.logprobs(lessons)
            lessons = [lesson.with_logprobs(each) for lesson, each in zip(lessons, found, strict=True)]
        if self.reference is not None and lessons:
            lessons, numbers["kl_reference"] = await self.reference.penalize(lessons)
        in_order = iter(lessons)
        rollouts = [[next(in_order) for _ in rollout] for rollout in batch.rollout_lessons]
        return replace(batch, rollout_lessons=rollouts), numbers

    async def logprobs(self, lessons: Sequence[Lesson]) -> list[np.ndarray]:
        """The learner's own logprobs at every position."""
        result = await self.learner.forward(
            [lesson.weighted(lesson.mask_T) for lesson in lessons], "cross_entropy"
        )
        return _logprobs(result)


@dataclass
class Update:
    """The passes and updates of one step, from the first lessons to the new weights."""

    teaching: Teaching
    adam: tinker.AdamParams
    taught: list[Lesson] = field(default_factory=list)
    _passes: list[Any] = field(default_factory=list)
    _updates: list[Any] = field(default_factory=list)
    _numbers: dict[str, float] = field(default_factory=dict)
    _loss: float = 0.0
    _has_gradient: bool = False

    async def add(self, lessons: Sequence[Lesson]) -> None:
        """Queues the gradients of these lessons."""
        if not lessons:
            return
        config, learner = self.teaching.config, self.teaching.learner
        if ":" in config.loss_fn:
            await self._add_custom(lessons)
        else:
            datums = [lesson.datum() for lesson in lessons]
            self._passes.append(await learner.submit(datums, config.loss_fn, config.loss_fn_config))
        self.taught += lessons
        self._has_gradient = True

    async def _add_custom(self, lessons: Sequence[Lesson]) -> None:
        result = find_custom_loss(self.teaching.config.loss_fn)(
            await self.teaching.logprobs(lessons), lessons
        )
        check_gradient(result, lessons)
        datums = [
            lesson.weighted(-np.asarray(gradient))
            for lesson, gradient in zip(lessons, result.gradients, strict=True)
        ]
        self._passes.append(await self.teaching.learner.submit(datums, "cross_entropy"))
        self._loss += result.loss
        self._numbers |= result.metrics

    async def step(self) -> None:
        """Queues an optimizer update, if there is anything to update with."""
        if self._has_gradient:
            self._updates.append(await self.teaching.learner.submit_update(self.adam))
            self._has_gradient = False

    async def finish(self) -> dict[str, Any]:
        """Waits for all of it; figures about the update, or nothing where there was none."""
        passes = await asyncio.gather(*(future.result_async() for future in self._passes))
        updates = await asyncio.gather(*(future.result_async() for future in self._updates))
        if not updates:
            return {}
        logprobs = [found for result in passes for found in _logprobs(result)]
        custom = ":" in self.teaching.config.loss_fn
        norms = [(update.metrics or {}).get("unclipped_grad_l2:mean") for update in updates]
        return {
            "loss_sum": self._loss if custom else sum(result.metrics["loss:sum"] for result in passes),
            "learning_rate": self.adam.learning_rate,
            "updates": len(updates),
            "grad_norm": max((norm for norm in norms if norm is not None), default=None),
            **policy_numbers(self.taught, logprobs),
            **self._numbers,
        }


def _logprobs(result: tinker.ForwardBackwardOutput) -> list[np.ndarray]:
    return [np.asarray(output["logprobs"].to_numpy()) for output in result.loss_fn_outputs]
