"""The compiled passes over laid-out rows: forward, and forward with backward.

A pass is begun to be compiled as soon as it is known to be needed, beside whatever runs; `Pass.is_ready`
waits a moment and says whether it can be run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from termrl.engine.architecture import LlamaConfig
from termrl.engine.head import loss_by_chunks
from termrl.engine.llama import Params, hidden_states, target_logprobs, unembed_matrix
from termrl.engine.lora import Lora, LoraSpec, merge, merges_first, scaled
from termrl.engine.losses import LossSettings, token_loss
from termrl.engine.models import BaseModel
from termrl.engine.programs import Key
from termrl.engine.rows import Rows, blank_rows

merged = jax.jit(merge)


@functools.partial(jax.jit, static_argnums=1)
def _forward(params: Params, config: LlamaConfig, rows: Rows) -> tuple[Array, Array]:
    logprobs = target_logprobs(params, config, rows.tokens, rows.targets, None, rows.inputs.start)
    return logprobs, _costs(logprobs, rows)


def _costs(logprobs: Array, rows: Rows) -> Array:
    if logprobs.ndim == 3:
        return -logprobs * rows.inputs.weights
    return token_loss(rows.loss, logprobs, rows.inputs, rows.coefficient)


@functools.partial(jax.jit, static_argnums=(1, 6), donate_argnums=3)
def _forward_backward(
    params: Params, config: LlamaConfig, lora: Lora, gradients: Lora, rows: Rows, alpha: Any, by_token: bool
) -> tuple[Array, Array, Lora]:
    def loss(lora: Lora) -> tuple[Array, tuple[Array, Array]]:
        start = rows.inputs.start
        if merges_first(config, lora):
            merged = merge(params, lora, alpha)
            logprobs = target_logprobs(merged, config, rows.tokens, rows.targets, None, start)
        elif by_token:
            adapter = scaled(lora, alpha)
            hidden = hidden_states(params, config, rows.tokens, adapter, start)
            total, logprobs, costs = loss_by_chunks(
                hidden, adapter.get("unembed"), unembed_matrix(params), rows
            )
            return total, (logprobs, costs)
        else:
            logprobs = target_logprobs(params, config, rows.tokens, rows.targets, scaled(lora, alpha), start)
        costs = _costs(logprobs, rows)
        return costs.sum(), (logprobs, costs)

    (_, (logprobs, costs)), fresh = jax.value_and_grad(loss, has_aux=True)(lora)
    return logprobs, costs, jax.tree.map(jnp.add, gradients, fresh)


@dataclass(frozen=True)
class Pass:
    """One shape of a pass over a model; `run` takes what its maker says."""

    base: BaseModel
    key: Key

    def is_ready(self) -> bool:
        return self.base.programs.wait(self.key)

    @property
    def run(self) -> Callable[..., Any]:
        made: Callable[..., Any] = self.base.programs.get(self.key)
        return made


def forward_pass(base: BaseModel, params: Params, height: int, length: int, wide: tuple[int, ...]) -> Pass:
    """`run(params, rows)` gives logprobs and costs."""
    config = base.config

    def compile_it() -> Callable[..., Any]:
        if base.mesh is not None:
            # Where arrays are spread over devices the compiler has to see how: at the first call.
            return lambda params, rows: _forward(params, config, rows)
        rows = blank_rows(height, length, wide, 0, LossSettings())
        return _forward.lower(params, config, rows).compile()

    key = ("forward", config, params.unembed is None, height, length, wide)
    base.programs.begin(key, f"forward over {height} × {length} tokens", compile_it, urgent=False)
    return Pass(base, key)


def backward_pass(
    base: BaseModel,
    spec: LoraSpec,
    params: Params,
    lora: Lora,
    height: int,
    length: int,
    wide: tuple[int, ...],
    *,
    by_token: bool,
) -> Pass:
    """`run(params, lora, gradients, rows, alpha)` gives logprobs, costs and the gradients with its own.

    `params` are the base's where gradients go through the merge, else the merged ones. `by_token` says that
    a token's cost depends on no other token's logprob.
    """
    config = base.config
    by_token = by_token and not wide and not merges_first(config, lora)

    def compile_it() -> Callable[..., Any]:
        if base.mesh is not None:
            return lambda params, lora, gradients, rows, alpha: _forward_backward(
                params, config, lora, gradients, rows, alpha, by_token
            )
        rows = blank_rows(height, length, wide, 0, LossSettings())
        return _forward_backward.lower(params, config, lora, lora, rows, np.float32(0), by_token).compile()

    key = ("backward", config, spec.rank, spec.matrices, height, length, wide, by_token)
    base.programs.begin(key, f"training on {height} × {length} tokens", compile_it, urgent=False)
    return Pass(base, key)
