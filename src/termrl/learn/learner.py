"""The policy in training: a Tinker training client, the version of its weights, its checkpoints.

All of it goes through the `tinker` SDK, whatever serves it. Every optimizer update makes a new version; a
sampler is always taken of the version as it is. No time-out is put around Tinker's calls.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import tinker
from tinker.types import LossFnType

from termrl.config import TrainConfig
from termrl.policy.sampler import TinkerSampler
from termrl.store import Checkpoint


class Learner:
    def __init__(self, client: tinker.TrainingClient, config: TrainConfig, version: int) -> None:
        self._client = client
        self._config = config
        self.version = version

    @classmethod
    async def fresh(cls, service: tinker.ServiceClient, config: TrainConfig) -> "Learner":
        """A new adapter on the base model."""
        client = await service.create_lora_training_client_async(
            base_model=config.model_name, rank=config.lora_rank, seed=config.seed
        )
        return cls(client, config, version=0)

    @classmethod
    async def resumed(
        cls, service: tinker.ServiceClient, config: TrainConfig, checkpoint: Checkpoint
    ) -> "Learner":
        """The weights and optimizer as they were at a checkpoint."""
        client = await service.create_training_client_from_state_with_optimizer_async(checkpoint.state_path)
        return cls(client, config, version=checkpoint.step)

    async def update(
        self, minibatches: Sequence[Sequence[tinker.Datum]], loss_fn: LossFnType, adam: tinker.AdamParams
    ) -> dict[str, float]:
        """One optimizer update a minibatch, each submitted before the last one returned."""
        pending: list[tuple[Any, Any]] = []
        for datums in minibatches:
            gradient = await self._client.forward_backward_async(list(datums), loss_fn)
            step = await self._client.optim_step_async(adam)
            pending.append((gradient, step))
        metrics: dict[str, float] = {}
        for gradient, step in pending:
            result, _ = await asyncio.gather(gradient.result_async(), step.result_async())
            for name, value in result.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + value / (
                    1 if name.endswith(":sum") else len(pending)
                )
        self.version += 1
        return metrics

    async def sampler(self, stop: Sequence[int]) -> TinkerSampler:
        """A sampler of the weights as they are now."""
        client = await self._client.save_weights_and_get_sampling_client_async()
        return TinkerSampler(
            client, policy_version=self.version, stop=stop, temperature=self._config.temperature
        )

    async def checkpoint(self, name: str, step: int) -> Checkpoint:
        """Weights and optimizer, and the weights for samplers, kept under a name."""
        state = await self._client.save_state_async(name)
        sampler = await self._client.save_weights_for_sampler_async(name)
        saved, for_sampler = await asyncio.gather(state.result_async(), sampler.result_async())
        return Checkpoint(name, step, saved.path, for_sampler.path)
