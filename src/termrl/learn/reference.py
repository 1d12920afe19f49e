"""The penalty for straying from a reference policy, token by token, in the advantage.

A sampled token's distance is its logprob less the reference's, an estimate of KL(policy, reference). Taken
from each advantage is `coef` times the distance less the minibatch's mean (so that the penalty moves no
reward as a whole) and, with a discount, times those of the tokens sampled after it.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import tinker

from termrl.config import TrainConfig
from termrl.learn.datums import Lesson
from termrl.learn.meter import Meter


class Reference:
    def __init__(self, client: tinker.SamplingClient, meter: Meter, *, coef: float, discount: float) -> None:
        self._client: Any = client
        self._meter = meter
        self._coef = coef
        self._discount = discount

    @classmethod
    async def make(
        cls, service: tinker.ServiceClient, config: TrainConfig, meter: Meter
    ) -> "Reference | None":
        """The reference that the settings name, if there is a penalty."""
        if config.kl_penalty_coef == 0:
            return None
        client = await service.create_sampling_client_async(
            model_path=config.kl_reference,
            base_model=None if config.kl_reference else config.model_name,
        )
        return cls(client, meter, coef=config.kl_penalty_coef, discount=config.kl_discount_factor)

    async def penalize(self, lessons: Sequence[Lesson]) -> tuple[list[Lesson], float]:
        """The lessons with the penalty in their advantages, and the mean distance per sampled token."""
        references = await asyncio.gather(*(self._logprobs(lesson) for lesson in lessons))
        return penalized(lessons, references, coef=self._coef, discount=self._discount)

    async def _logprobs(self, lesson: Lesson) -> np.ndarray:
        tokens = [int(lesson.inputs_T[0]), *lesson.targets_T.tolist()]
        found = await self._client.compute_logprobs_async(tinker.ModelInput.from_ints(tokens))
        self._meter.count_sampling(len(tokens), 0)
        return np.asarray([0.0 if value is None else value for value in found[1:]], np.float64)


def penalized(
    lessons: Sequence[Lesson], references: Sequence[np.ndarray], *, coef: float, discount: float
) -> tuple[list[Lesson], float]:
    distances = [
        np.where(lesson.mask_T, lesson.logprobs_T.astype(np.float64) - reference, 0.0)
        for lesson, reference in zip(lessons, references, strict=True)
    ]
    count = sum(int(lesson.mask_T.sum()) for lesson in lessons)
    mean = sum(float(distance.sum()) for distance in distances) / max(count, 1)
    taught = []
    for lesson, distance in zip(lessons, distances, strict=True):
        excess = distance[lesson.mask_T] - mean
        penalty = np.zeros(lesson.length)
        penalty[lesson.mask_T] = coef * discounted_sums(excess, discount)
        taught.append(lesson.with_advantages(lesson.advantages_T - penalty))
    return taught, mean


def discounted_sums(values: np.ndarray, discount: float) -> np.ndarray:
    """Each value plus `discount` times the sum at the next: [1, 2, 3] at a half is [2.75, 3.5, 3]."""
    sums = np.array(values, np.float64)
    for index in range(len(sums) - 2, -1, -1):
        sums[index] += discount * sums[index + 1]
    return sums
