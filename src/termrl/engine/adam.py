"""AdamW as `torch.optim.AdamW` computes it, over any pytree; weight decay is decoupled.

Settings are arguments of the compiled step, so that changing them compiles nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class AdamSettings(NamedTuple):
    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """The largest global gradient norm; 0 does not clip."""


class AdamState(NamedTuple):
    mean: Any
    square: Any
    step: Array


def init_adam(weights: Any) -> AdamState:
    return AdamState(
        jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights), jnp.zeros((), jnp.int32)
    )


@jax.jit
def global_norm(gradients: Any) -> Array:
    return jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(gradients)))


@jax.jit
def adam_step(
    weights: Any, gradients: Any, state: AdamState, norm: Array, settings: AdamSettings
) -> tuple[Any, AdamState]:
    """The new weights and state; `norm` is the gradients' global norm."""
    clip = jnp.asarray(settings.grad_clip_norm)
    scale = jnp.where((clip > 0) & (norm > clip), clip / norm, 1.0)
    step = state.step + 1
    beta1, beta2 = jnp.asarray(settings.beta1), jnp.asarray(settings.beta2)
    gradients = jax.tree.map(lambda g: g * scale, gradients)
    mean = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mean, gradients)
    square = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state.square, gradients)
    mean_scale, square_scale = 1 / (1 - beta1**step), 1 / (1 - beta2**step)

    def update(w: Array, m: Array, v: Array) -> Array:
        kept = w * (1 - settings.learning_rate * settings.weight_decay)
        return kept - settings.learning_rate * m * mean_scale / (jnp.sqrt(v * square_scale) + settings.eps)

    return jax.tree.map(update, weights, mean, square), AdamState(mean, square, step)
