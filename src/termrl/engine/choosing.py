"""How a row of logits becomes a token: temperature, top_k and top_p, then a draw by inverse CDF.

Every sum runs in an order that the number of rows does not change. Axis names are those of `llama`; C is the
tokens of one call, I the ids that end an answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from termrl.engine.products import product, row_sum

MAX_STOP_IDS = 16
_CDF_BLOCK = 64


class Choice(NamedTuple):
    """How each row picks its tokens; `uniform_B_C` holds one number in [0, 1) for every step."""

    uniform_B_C: Any
    temperature_B: Any
    top_k_B: Any
    top_p_B: Any
    filtered: Any
    stop_ids_B_I: Any
    limit_B: Any


def pick(logits_B_V: Array, choice: Choice, i: Array) -> tuple[Array, Array]:
    """One token a row by inverse CDF, with the log-probability the model gives it at temperature 1.

    A row at temperature 1 that nothing filters draws from the weights that the log-probability is made of;
    where all do, no others are computed.
    """
    top = logits_B_V.max(axis=-1, keepdims=True)
    weights = in_blocks(jnp.exp(logits_B_V - top))
    uniform = jax.lax.dynamic_slice_in_dim(choice.uniform_B_C, i, 1, axis=1)[:, 0]
    plain = _is_plain(choice)

    def as_chosen() -> Array:
        greedy = choice.temperature_B <= 0
        scaled = logits_B_V / jnp.where(greedy, 1.0, choice.temperature_B)[:, None]
        scaled = jax.lax.cond(choice.filtered, _filter, lambda x, _: x, scaled, choice)
        scaled = jnp.where(plain[:, None], logits_B_V, scaled)
        drawn = draw(in_blocks(jnp.exp(scaled - scaled.max(axis=-1, keepdims=True))), uniform)
        return jnp.where(greedy, jnp.argmax(logits_B_V, axis=-1), drawn).astype(jnp.int32)

    token = jax.lax.cond(plain.all(), lambda: draw(weights, uniform), as_chosen)
    chosen = jnp.take_along_axis(logits_B_V, token[:, None], axis=1)
    return token, (chosen - top)[:, 0] - jnp.log(weights.running_B_N[:, -1])


def _is_plain(choice: Choice) -> Array:
    plain: Array = (choice.temperature_B == 1) & (choice.top_k_B <= 0) & (choice.top_p_B >= 1)
    return plain


class Weights(NamedTuple):
    """The weights of a row's tokens in blocks, and the running sum of the blocks."""

    blocks_B_N_W: Array
    running_B_N: Array


def in_blocks(weight_B_V: Array) -> Weights:
    rows, vocab = weight_B_V.shape
    padded = jnp.pad(weight_B_V, ((0, 0), (0, -vocab % _CDF_BLOCK)))
    blocks = padded.reshape(rows, -1, _CDF_BLOCK)
    return Weights(blocks, _running_sum(row_sum(blocks)[..., 0]))


def draw(weights: Weights, uniform_B: Array) -> Array:
    """The first index whose running sum exceeds `uniform` of the whole: a block, then a place in it."""
    blocks, block_sum = weights
    target = uniform_B * block_sum[:, -1]
    # A rounding error at the far end must not point behind the last block or at a token of weight zero.
    block = jnp.minimum((block_sum <= target[:, None]).sum(axis=-1), block_sum.shape[1] - 1)
    before = jnp.where(block > 0, jnp.take_along_axis(block_sum, (block - 1)[:, None], axis=1)[:, 0], 0.0)
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    running = _running_sum(inside)
    place = (running <= (target - before)[:, None]).sum(axis=-1)
    last = _CDF_BLOCK - 1 - jnp.argmax((inside > 0)[:, ::-1], axis=-1)
    return (block * _CDF_BLOCK + jnp.minimum(place, last)).astype(jnp.int32)


def _running_sum(x: Array) -> Array:
    size = x.shape[-1]
    return product(x, jnp.triu(jnp.ones((size, size))))


def _filter(scaled_B_V: Array, choice: Choice) -> Array:
    """Keeps the top k and the smallest set of top tokens whose probability reaches top p."""
    ordered = jnp.sort(scaled_B_V, axis=-1)[:, ::-1]
    vocab = scaled_B_V.shape[1]
    top_k = choice.top_k_B
    kept = jnp.where(top_k > 0, jnp.minimum(top_k, vocab), vocab)
    kth = jnp.take_along_axis(ordered, (kept - 1)[:, None], axis=1)
    ordered = jnp.where(ordered >= kth, ordered, -jnp.inf)
    probability = jax.nn.softmax(ordered, axis=-1)
    before = jnp.cumsum(probability, axis=-1) - probability
    inside = (before < choice.top_p_B[:, None]).sum(axis=-1)
    last = jnp.take_along_axis(ordered, jnp.maximum(inside - 1, 0)[:, None], axis=1)
    return jnp.where(scaled_B_V >= jnp.maximum(kth, last), scaled_B_V, -jnp.inf)
