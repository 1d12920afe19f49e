"""The policy in training: a Tinker training client, the version of its weights, its checkpoints.

All of it goes through the `tinker` SDK, whatever serves it. Every step makes a new version; a sampler is
always taken of the version as it is. No time-out is put around Tinker's calls.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import tinker
from tinker.types import LossFnType

from termrl.config import TrainConfig
from termrl.errors import UserError
from termrl.learn.meter import Meter
from termrl.learn.temperature import SERVER, old_logprobs
from termrl.policy.sampler import Sampler, TinkerSampler
from termrl.store import Checkpoint

SHORTEST_TTL_SECONDS = 3600
EVERYWHERE = ("importance_sampling", "ppo")
"""Losses that every server computes: nobody has to be asked."""


class LossRefusedError(UserError):
    """The server does not compute the loss with these settings."""


class Learner:
    def __init__(
        self,
        service: tinker.ServiceClient,
        client: tinker.TrainingClient,
        config: TrainConfig,
        meter: Meter,
        version: int,
    ) -> None:
        self._service = service
        self._client = client
        self._config = config
        self._meter = meter
        self._sampler: Sampler | None = None
        self.version = version

    @classmethod
    async def fresh(cls, service: tinker.ServiceClient, config: TrainConfig, meter: Meter) -> "Learner":
        """A new adapter on the base model, or the weights that the settings say to begin with."""
        if config.checkpoint_url is not None:
            client = await service.create_training_client_from_state_async(config.checkpoint_url)
        else:
            client = await service.create_lora_training_client_async(
                base_model=config.model_name,
                rank=config.lora_rank,
                seed=config.seed,
                train_unembed=config.train_unembed,
            )
        return cls(service, client, config, meter, version=0)

    @classmethod
    async def resumed(
        cls, service: tinker.ServiceClient, config: TrainConfig, meter: Meter, checkpoint: Checkpoint
    ) -> "Learner":
        """The weights and optimizer as they were at a checkpoint."""
        client = await service.create_training_client_from_state_with_optimizer_async(checkpoint.state_path)
        return cls(service, client, config, meter, version=checkpoint.step)

    async def require_loss(self) -> None:
        """Asks the server for the chosen loss over one token: it refuses by name what it does not have."""
        if ":" in self._config.loss_fn or (
            self._config.loss_fn in EVERYWHERE and not self._config.loss_fn_config
        ):
            return
        ones = tinker.TensorData(data=[0.0], dtype="float32", shape=[1])
        probe = tinker.Datum(
            model_input=tinker.ModelInput.from_ints([0]),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData(data=[0], dtype="int64", shape=[1]),
                "logprobs": ones,
                "advantages": ones,
            },
        )
        try:
            await self.forward([probe], self._config.loss_fn, self._config.loss_fn_config)
        except (tinker.RequestFailedError, tinker.APIStatusError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise LossRefusedError(
                f"The server does not train with loss_fn={self._config.loss_fn} "
                f"{dict(self._config.loss_fn_config) or ''}: {reason}"
            ) from error

    async def forward(
        self, datums: Sequence[tinker.Datum], loss_fn: str, settings: Any = None
    ) -> tinker.ForwardBackwardOutput:
        """A pass without gradients."""
        self._meter.count_training(sum(datum.model_input.length for datum in datums))
        future = await self._client.forward_async(list(datums), cast(LossFnType, loss_fn), settings or None)
        return await future.result_async()

    async def submit(self, datums: Sequence[tinker.Datum], loss_fn: str, settings: Any = None) -> Any:
        """Queues a pass whose gradients add to those since the last update; a future of its result."""
        self._meter.count_training(sum(datum.model_input.length for datum in datums))
        return await self._client.forward_backward_async(
            list(datums), cast(LossFnType, loss_fn), settings or None
        )

    async def submit_update(self, adam: tinker.AdamParams) -> Any:
        """Queues an optimizer update with the gradients so far."""
        return await self._client.optim_step_async(adam)

    async def supervise(self, datums: Sequence[tinker.Datum], adam: tinker.AdamParams) -> dict[str, float]:
        """One update by cross-entropy."""
        gradient = await self.submit(datums, "cross_entropy")
        update = await self.submit_update(adam)
        result, _ = await asyncio.gather(gradient.result_async(), update.result_async())
        self.new_version()
        return dict(result.metrics)

    def new_version(self) -> None:
        """A step was applied: samplers are of other weights from here on."""
        self.version += 1
        self._sampler = None

    async def sampler(self, stop: Sequence[int]) -> Sampler:
        """A sampler of the weights as they are now."""
        if self._sampler is None or self._sampler.policy_version != self.version:
            version = self.version
            client = await self._client.save_weights_and_get_sampling_client_async()
            self._sampler = self._sampling(client, version, stop)
        return self._sampler

    async def sampler_of(self, path: str, version: int, stop: Sequence[int]) -> Sampler:
        """A sampler of weights that were saved."""
        client = await self._service.create_sampling_client_async(model_path=path)
        return self._sampling(client, version, stop)

    def _sampling(self, client: tinker.SamplingClient, version: int, stop: Sequence[int]) -> Sampler:
        return self._meter.metered(
            TinkerSampler(client, policy_version=version, stop=stop, temperature=self._config.temperature)
        )

    async def whose_logprobs(self, prompt: Sequence[int]) -> str:
        """Whose logprobs are the old ones of the ratio at this temperature: see `temperature`."""
        if self._config.temperature == 1:
            return SERVER
        client = await self._client.save_weights_and_get_sampling_client_async()
        return await old_logprobs(client, prompt, self._config.temperature)

    async def checkpoint(
        self, name: str, step: int, *, kind: str = "periodic", ttl_hours: float | None = None
    ) -> Checkpoint:
        """Weights and optimizer, and the weights for samplers, kept under a name."""
        ttl = None if ttl_hours is None else max(int(3600 * ttl_hours), SHORTEST_TTL_SECONDS)
        state = await self._client.save_state_async(name, ttl_seconds=ttl)
        sampler = await self._client.save_weights_for_sampler_async(name, ttl_seconds=ttl)
        saved, for_sampler = await asyncio.gather(state.result_async(), sampler.result_async())
        return Checkpoint(name, step, saved.path, for_sampler.path, kind)

    async def save_for_sampler(self, name: str) -> str:
        """The weights as they are now, for a sampler that outlives this process."""
        future = await self._client.save_weights_for_sampler_async(name)
        return (await future.result_async()).path

    async def forget(self, checkpoint: Checkpoint) -> None:
        """Removes a checkpoint that another one replaced; one that is gone already is no matter."""
        rest = self._service.create_rest_client()
        for path in (checkpoint.state_path, checkpoint.sampler_path):
            try:
                await rest.delete_checkpoint_from_tinker_path_async(path)
            except tinker.APIStatusError as error:
                if error.status_code != 404:
                    raise
