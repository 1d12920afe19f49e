"""One training client: what is trained, optimizer state and the gradients accumulated since the last step.

The same data in the same order gives the same weights bit for bit, across processes and across a saved and
loaded state. A pass over data is a generator that pauses between batches, so that sampling can go on in
between; nothing of a pass that fails reaches the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from termrl.engine.adam import AdamSettings, AdamState, adam_step, global_norm, init_adam
from termrl.engine.batches import Batch, plan
from termrl.engine.llama import Params
from termrl.engine.lora import Lora, LoraSpec, init_lora, merges_first
from termrl.engine.losses import Loss, find_loss, read_settings
from termrl.engine.mesh import place_batch
from termrl.engine.models import BaseModel
from termrl.engine.passes import Pass, backward_pass, forward_pass, merged
from termrl.engine.rows import Datum, lay_out, widen
from termrl.errors import UserError


class DatumError(UserError):
    """A datum cannot be trained on as it is."""


class GradientError(UserError):
    """There is no gradient to step with, or it is not finite."""


@dataclass(frozen=True)
class PassResult:
    logprobs: list[np.ndarray]
    costs: list[np.ndarray]
    loss: float


class Trainer:
    def __init__(self, base: BaseModel, spec: LoraSpec, seed: int) -> None:
        self.base = base
        self.spec = spec
        self.lora: Lora = init_lora(base.config, base.params, spec, seed)
        self.adam: AdamState = init_adam(self.lora)
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
            data = widen(data)
        logprobs: list[np.ndarray] = [np.empty(0)] * len(data)
        costs: list[np.ndarray] = [np.empty(0)] * len(data)
        gradients = jax.tree.map(jnp.zeros_like, self.lora) if backward else None
        batches = plan([len(datum.tokens) for datum in data])
        passes = [self._pass(batch, data[0].targets.shape[1:], loss, backward=backward) for batch in batches]
        for batch, compiled in zip(batches, passes, strict=True):
            while not compiled.is_ready():
                yield
            rows = place_batch(lay_out(data, batch, loss.index, chosen), self.base.mesh)
            if gradients is not None:
                found, cost, gradients = compiled.run(
                    self._pass_params(), self.lora, gradients, rows, np.float32(self.spec.alpha)
                )
            else:
                found, cost = compiled.run(self.merged_params(), rows)
            found, cost = np.asarray(found), np.asarray(cost)
            for place in batch.places:
                span = place.row, slice(place.start, place.start + len(data[place.member].tokens))
                logprobs[place.member] = _as_asked(found[span], asked[place.member])
                costs[place.member] = _as_asked(cost[span], asked[place.member])
            yield
        if gradients is not None:
            held = self._gradients
            self._gradients = gradients if held is None else jax.tree.map(jnp.add, held, gradients)
        total = math.fsum(float(cost.sum(dtype=np.float64)) for cost in costs)
        return PassResult(logprobs, costs, total)

    def _pass(self, batch: Batch, wide: tuple[int, ...], loss: Loss, *, backward: bool) -> Pass:
        if backward:
            params, shape = self._pass_params(), (batch.height, batch.length, wide)
            return backward_pass(self.base, self.spec, params, self.lora, *shape, by_token=loss.by_token)
        return forward_pass(self.base, self.merged_params(), batch.height, batch.length, wide)

    def _pass_params(self) -> Params:
        """The weights that a backward pass computes with."""
        through = merges_first(self.base.config, self.lora)
        return self.base.params if through else self.merged_params()

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
