"""Training runs small enough for a test: three steps of two groups."""

from collections.abc import Callable
from typing import Any

import tinker

from termrl.config import TrainConfig
from termrl.learn.progress import Silent
from termrl.learn.train import train_run

BASE: dict[str, Any] = {
    "batch_size": 2,
    "group_size": 4,
    "max_steps": 3,
    "lora_rank": 4,
    "learning_rate": 1e-2,
    "eval_dataset": None,
    "eval_dataset_families": None,
    "eval_base": False,
    "save_every": 0,
}


def config_of(**settings: Any) -> TrainConfig:
    return TrainConfig(**{**BASE, **settings})


async def logprobs_after(training: Any) -> list[float]:
    """What the last weights think of some tokens: equal only where the weights are."""
    client = await training.service.create_sampling_client_async(
        model_path=training.run.checkpoints()[-1].sampler_path
    )
    found = await client.compute_logprobs_async(tinker.ModelInput.from_ints([5, 9, 13, 21, 34, 55]))
    return [float(value) for value in found[1:]]


async def train(training_of: Any, name: str, config: TrainConfig, **parts: Any) -> list[float]:
    async with training_of(name, config, **parts) as training:
        await train_run(training)
        return await logprobs_after(training)


class CountedSteps(Silent):
    """Calls `then` when so many steps are done."""

    def __init__(self, count: int, then: Callable[[], object]) -> None:
        self.done = 0
        self._count = count
        self._then = then

    def advance(self, n: int = 1, **numbers: float) -> None:
        self.done += n
        if n and self.done == self._count:
            self._then()
