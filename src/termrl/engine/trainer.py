"""One training client: what is trained, optimizer state and the gradients accumulated since the last step.

The same data in the same order gives the same weights bit for bit, across processes and across a saved and
loaded state. A pass over data is a generator that pauses between batches, so that sampling can go on in
between; nothing of a pass that fails reaches the gradients.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from termrl.engine.adam import AdamSettings, AdamState, adam_step, global_norm, init_adam
from termrl.engine.architecture import LlamaConfig
from termrl.engine.batches import plan
from termrl.engine.llama import Params, target_logprobs
from termrl.engine.lora import Lora, LoraSpec, init_lora, merge, merges_first, scaled
from termrl.engine.losses import LossSettings, TokenInputs, find_loss, read_settings, token_loss
from termrl.engine.mesh import place_batch
from termrl.engine.models import BaseModel
from termrl.errors import UserError


class DatumError(UserError):
    """A datum cannot be trained on as it is."""


class GradientError(UserError):
    """There is no gradient to step with, or it is not finite."""


@dataclass(frozen=True)
class Datum:
    """One sequence to train on, with a value a token in every column.

    `weights` are cross_entropy's weights or the advantages, `sampled` the sampler's logprobs, `low` and
    `high` a token's own clip range, `mask` the tokens of gspo's ratio. cross_entropy may have several targets
    a token: `targets` and `weights` are then [T, K].
    """

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    sampled: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    mask: np.ndarray | None = None


@dataclass(frozen=True)
class PassResult:
    logprobs: list[np.ndarray]
    costs: list[np.ndarray]
    loss: float


@functools.partial(jax.jit, static_argnums=1)
def forward(params: Params, config: LlamaConfig, tokens_B_T: Array, targets_B_T: Array) -> Array:
    return target_logprobs(params, config, tokens_B_T, targets_B_T)


merged = jax.jit(merge)


class _Arrays(NamedTuple):
    """A padded batch and how it is scored."""

    tokens: Any
    targets: Any
    inputs: TokenInputs
    loss: Any
    coefficient: Any


@jax.jit
def _costs(logprobs: Array, batch: _Arrays) -> Array:
    if logprobs.ndim == 3:
        return -logprobs * batch.inputs.weights
    return token_loss(batch.loss, logprobs, batch.inputs, batch.coefficient)


@functools.partial(jax.jit, static_argnums=1, donate_argnums=3)
def _forward_backward(
    params: Params, config: LlamaConfig, lora: Lora, gradients: Lora, batch: _Arrays, alpha: float
) -> tuple[Array, Array, Lora]:
    def loss(lora: Lora) -> tuple[Array, tuple[Array, Array]]:
        if merges_first(config, lora):
            logprobs = target_logprobs(merge(params, lora, alpha), config, batch.tokens, batch.targets)
        else:
            adapter = scaled(lora, alpha)
            logprobs = target_logprobs(params, config, batch.tokens, batch.targets, adapter)
        costs = _costs(logprobs, batch)
        return costs.sum(), (logprobs, costs)

    (_, (logprobs, costs)), fresh = jax.value_and_grad(loss, has_aux=True)(lora)
    return logprobs, costs, jax.tree.map(jnp.add, gradients, fresh)


class Trainer:
    def __init__(self, base: BaseModel, spec: LoraSpec, seed: int) -> None:
        self.base = base
        self.spec = spec
        self.lora: Lora = init_lora(base.config, base.params, spec, seed)
        self.adam: AdamState = init_adam(self.lora)
        self._is_big = not base.config.is_small
        self._gradients: Lora | None = None
        self._merged: Params | None = None

    def merged_params(self) -> Params:
        if self._merged is None:
            self._merged = merged(self.base.params, self.lora, self.spec.alpha)
        return self._merged

    def run(
        self, data: Sequence[Datum], loss_fn: str, settings: Mapping[str, float | str], *, backward: bool
    ) -> Generator[None, None, PassResult]:
        """Forward, and backward if asked, over all data; accumulates gradients when all of it went well."""
        loss = find_loss(loss_fn)
        chosen = read_settings(loss_fn, settings)
        for datum in data:
            self._check(datum)
        asked = [datum.targets.shape for datum in data]
        if any(len(shape) == 2 for shape in asked):
            data = _widen(data)
        logprobs: list[np.ndarray] = [np.empty(0)] * len(data)
        costs: list[np.ndarray] = [np.empty(0)] * len(data)
        gradients = jax.tree.map(jnp.zeros_like, self.lora) if backward else None
        params = None if backward else self.merged_params()
        for batch in plan([len(datum.tokens) for datum in data], fine=self._is_big):
            members = [data[i] for i in batch.members]
            arrays = _pad(members, batch.height, batch.length, loss.index, chosen)
            arrays = place_batch(arrays, self.base.mesh)
            if gradients is not None:
                found, cost, gradients = _forward_backward(
                    self.base.params, self.base.config, self.lora, gradients, arrays, self.spec.alpha
                )
            else:
                assert params is not None
                found = forward(params, self.base.config, arrays.tokens, arrays.targets)
                cost = _costs(found, arrays)
            found_rows, cost_rows = np.asarray(found), np.asarray(cost)
            for row, member in enumerate(batch.members):
                length = len(data[member].tokens)
                logprobs[member] = _as_asked(found_rows[row, :length], asked[member])
                costs[member] = _as_asked(cost_rows[row, :length], asked[member])
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
        if any(np.isnan(bound).any() for bound in (datum.low, datum.high) if bound is not None):
            raise DatumError("A datum has clip thresholds that are not numbers.")


def _as_asked(found: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if found.ndim == 2:
        found = found[:, : shape[1]] if len(shape) == 2 else found[:, 0]
    return found.copy()


def _widen(data: Sequence[Datum]) -> list[Datum]:
    """The same data with as many targets a token everywhere; a target of weight 0 adds nothing."""
    widest = max(datum.targets.shape[1] if datum.targets.ndim == 2 else 1 for datum in data)
    width = 1 << (widest - 1).bit_length()

    def widen(column: np.ndarray) -> np.ndarray:
        flat = column.reshape(len(column), -1)
        return np.pad(flat, ((0, 0), (0, width - flat.shape[1])))

    return [
        dataclasses.replace(datum, targets=widen(datum.targets), weights=widen(datum.weights))
        for datum in data
    ]


def _pad(data: Sequence[Datum], height: int, length: int, loss: int, settings: LossSettings) -> _Arrays:
    """Right-padded arrays; padding has weight 0, so it adds nothing to loss or gradient."""
    wide = data[0].targets.shape[1:]

    def column(dtype: type, fill: float = 0, shape: tuple[int, ...] = ()) -> np.ndarray:
        return np.full((height, length, *shape), fill, dtype)

    tokens, targets = column(np.int32), column(np.int32, shape=wide)
    weights, sampled = column(np.float32, shape=wide), column(np.float32)
    low, high, mask = column(np.float32, settings.low), column(np.float32, settings.high), column(np.float32)
    for row, datum in enumerate(data):
        size = len(datum.tokens)
        tokens[row, :size] = datum.tokens
        targets[row, :size] = datum.targets
        weights[row, :size] = datum.weights
        sampled[row, :size] = datum.sampled
        if datum.low is not None:
            low[row, :size] = datum.low
        if datum.high is not None:
            high[row, :size] = datum.high
        if not wide:
            mask[row, :size] = datum.weights != 0 if datum.mask is None else datum.mask
    inputs = TokenInputs(*map(_as_any, (weights, sampled, low, high, mask)))
    return _Arrays(tokens, targets, inputs, np.int32(loss), np.float32(settings.coefficient))


def _as_any(array: np.ndarray) -> Any:
    return array
