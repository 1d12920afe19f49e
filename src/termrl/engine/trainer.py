"""One LoRA training client: adapter, optimizer state and the gradients accumulated since the last step.

The same data in the same order gives the same weights bit for bit, across processes and across a saved and
loaded state. A pass over data is a generator that pauses between batches, so that sampling can go on in
between; nothing of a pass that fails reaches the gradients.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from termrl.engine.adam import AdamSettings, AdamState, adam_step, global_norm, init_adam
from termrl.engine.batches import plan
from termrl.engine.llama import LlamaConfig, Params, target_logprobs
from termrl.engine.lora import Lora, LoraSpec, init_lora, merge
from termrl.engine.losses import clip_range, find_loss, token_loss
from termrl.engine.models import BaseModel
from termrl.errors import UserError


class DatumError(UserError):
    """A datum cannot be trained on as it is."""


class GradientError(UserError):
    """There is no gradient to step with, or it is not finite."""


@dataclass(frozen=True)
class Datum:
    """`weights` are cross_entropy's weights or the advantages; `sampled` the sampler's logprobs."""

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    sampled: np.ndarray


@dataclass(frozen=True)
class PassResult:
    logprobs: list[np.ndarray]
    costs: list[np.ndarray]
    loss: float


@functools.partial(jax.jit, static_argnums=1)
def forward(params: Params, config: LlamaConfig, tokens_B_T: Array, targets_B_T: Array) -> Array:
    return target_logprobs(params, config, tokens_B_T, targets_B_T)


merged = jax.jit(merge)
_cost = jax.jit(token_loss)


@functools.partial(jax.jit, static_argnums=1, donate_argnums=3)
def _forward_backward(
    params: Params, config: LlamaConfig, lora: Lora, gradients: Lora, batch: Mapping[str, Any]
) -> tuple[Array, Array, Lora]:
    def loss(lora: Lora) -> tuple[Array, tuple[Array, Array]]:
        logprobs = target_logprobs(merge(params, lora), config, batch["tokens"], batch["targets"])
        costs = token_loss(
            batch["loss"], logprobs, batch["weights"], batch["sampled"], batch["low"], batch["high"]
        )
        return costs.sum(), (logprobs, costs)

    (_, (logprobs, costs)), fresh = jax.value_and_grad(loss, has_aux=True)(lora)
    return logprobs, costs, jax.tree.map(jnp.add, gradients, fresh)


class Trainer:
    def __init__(self, base: BaseModel, spec: LoraSpec, seed: int) -> None:
        self.base = base
        self.spec = spec
        self.lora: Lora = init_lora(base.config, spec, seed)
        self.adam: AdamState = init_adam(self.lora)
        self._gradients: Lora | None = None
        self._merged: Params | None = None

    def merged_params(self) -> Params:
        if self._merged is None:
            self._merged = merged(self.base.params, self.lora)
        return self._merged

    def run(
        self, data: Sequence[Datum], loss_fn: str, settings: Mapping[str, float | str], *, backward: bool
    ) -> Generator[None, None, PassResult]:
        """Forward, and backward if asked, over all data; accumulates gradients when all of it went well."""
        loss = find_loss(loss_fn)
        low, high = clip_range(loss_fn, settings)
        for datum in data:
            self._check(datum)
        logprobs: list[np.ndarray] = [np.empty(0)] * len(data)
        costs: list[np.ndarray] = [np.empty(0)] * len(data)
        gradients = jax.tree.map(jnp.zeros_like, self.lora) if backward else None
        params = None if backward else self.merged_params()
        for batch in plan([len(datum.tokens) for datum in data]):
            arrays = _pad([data[i] for i in batch.members], batch.height, batch.length)
            arrays |= {"loss": np.int32(loss.index), "low": np.float32(low), "high": np.float32(high)}
            if gradients is not None:
                found, cost, gradients = _forward_backward(
                    self.base.params, self.base.config, self.lora, gradients, arrays
                )
            else:
                assert params is not None
                found = forward(params, self.base.config, arrays["tokens"], arrays["targets"])
                cost = _cost(
                    arrays["loss"], found, arrays["weights"], arrays["sampled"], arrays["low"], arrays["high"]
                )
            found_rows, cost_rows = np.asarray(found), np.asarray(cost)
            for row, member in enumerate(batch.members):
                length = len(data[member].tokens)
                logprobs[member] = found_rows[row, :length].copy()
                costs[member] = cost_rows[row, :length].copy()
            yield
        if gradients is not None:
            held = self._gradients
            self._gradients = gradients if held is None else jax.tree.map(jnp.add, held, gradients)
        total = math.fsum(float(cost.sum(dtype=np.float64)) for cost in costs)
        return PassResult(logprobs, costs, total)

    def optim_step(self, settings: AdamSettings) -> float:
        """Steps with the accumulated gradients and forgets them; returns their norm before clipping."""
        if self._gradients is None:
            raise GradientError(
                "optim_step has no gradients: no forward_backward has succeeded since the last step."
            )
        gradients, self._gradients = self._gradients, None
        norm = global_norm(gradients)
        if not np.isfinite(norm):
            raise GradientError(
                "optim_step refused a gradient that is not finite; the weights are unchanged. "
                "Lower the learning rate or check advantages and logprobs."
            )
        arrays = AdamSettings(*(float(np.float32(value)) for value in settings))
        self.lora, self.adam = adam_step(self.lora, gradients, self.adam, norm, arrays)
        self._merged = None
        return float(norm)

    def load(self, lora: Lora, adam: AdamState | None) -> None:
        """Replaces the weights, and the optimizer's state by the given or a fresh one."""
        self.lora = lora
        self.adam = init_adam(lora) if adam is None else adam
        self._gradients = None
        self._merged = None

    def _check(self, datum: Datum) -> None:
        config = self.base.config
        if not 0 < len(datum.tokens) <= config.max_position_embeddings:
            raise DatumError(
                f"A datum has {len(datum.tokens)} tokens; {self.base.name} takes 1 to "
                f"{config.max_position_embeddings}."
            )
        for ids in (datum.tokens, datum.targets):
            if ids.min() < 0 or ids.max() >= config.vocab_size:
                raise DatumError(f"A datum has token ids outside the vocabulary of {config.vocab_size}.")
        if not (np.isfinite(datum.weights).all() and np.isfinite(datum.sampled).all()):
            raise DatumError("A datum has weights, advantages or logprobs that are not finite.")


def _pad(data: Sequence[Datum], height: int, length: int) -> dict[str, Any]:
    """Right-padded arrays; padding has weight 0, so it adds nothing to loss or gradient."""
    arrays: dict[str, Any] = {
        "tokens": np.zeros((height, length), np.int32),
        "targets": np.zeros((height, length), np.int32),
        "weights": np.zeros((height, length), np.float32),
        "sampled": np.zeros((height, length), np.float32),
    }
    for row, datum in enumerate(data):
        size = len(datum.tokens)
        arrays["tokens"][row, :size] = datum.tokens
        arrays["targets"][row, :size] = datum.targets
        arrays["weights"][row, :size] = datum.weights
        arrays["sampled"][row, :size] = datum.sampled
    return arrays
