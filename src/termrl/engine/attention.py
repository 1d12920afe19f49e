"""Causal grouped-query attention over whole sequences, and its backward pass.

It goes in blocks of queries, each against its own prefix of keys, which skips the upper triangle; on one CPU
it is machine code of our own. The backward pass computes a block's scores again, so that no [T, T] matrix
outlives its block; what it needs of the forward pass beside its arguments is the result and the logarithm of
each query's sum. Axis names are those of `llama`; G is the heads of a group and R the rows of a block, a
query of one head each.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from termrl.engine.own_attention import Piece, has_attention, own_attention, own_attention_backward

ATTENTION_BLOCK = 128
ATTENDED = "attended"
"""The name under which `jax.checkpoint` may keep what the backward pass needs."""


def causal_attention(
    q_B_H_T_E: Array, k_B_K_T_E: Array, v_B_K_T_E: Array, start_B_T: Array | None = None
) -> Array:
    """[B, H, T, E]. With `start_B_T` a token sees no key before its own sequence's first."""
    batch, heads, time, size = q_B_H_T_E.shape
    groups = k_B_K_T_E.shape[1]
    q = q_B_H_T_E.reshape(batch, groups, heads // groups, time, size) * (1.0 / math.sqrt(size))
    return _attention(q, k_B_K_T_E, v_B_K_T_E, start_B_T).reshape(batch, heads, time, size)


_Kept = tuple[Array, Array, Array, Array | None, Array, Array]


@jax.custom_vjp
def _attention(q_B_K_G_T_E: Array, k_B_K_T_E: Array, v_B_K_T_E: Array, start_B_T: Array | None) -> Array:
    return _attention_forward(q_B_K_G_T_E, k_B_K_T_E, v_B_K_T_E, start_B_T)[0]


def _query_blocks(time: int) -> list[tuple[int, int]]:
    return [(first, min(first + ATTENTION_BLOCK, time)) for first in range(0, time, ATTENTION_BLOCK)]


def _as_rows(x_B_K_G_T_E: Array, first: int, end: int) -> Array:
    """A block of queries with all heads of a group one below the other, [B, K, G Q, E]."""
    batch, groups, _, _, size = x_B_K_G_T_E.shape
    return x_B_K_G_T_E[:, :, :, first:end].reshape(batch, groups, -1, size)


def _block_scores(q_B_K_R_E: Array, k_B_K_S_E: Array, start_B_T: Array | None, first: int) -> Array:
    """Of a block's rows with the keys up to its end, -inf where one is not seen."""
    rows, end = q_B_K_R_E.shape[2], k_B_K_S_E.shape[2]
    queries, keys = end - first, jnp.arange(end)
    seen = keys[None, :] <= (first + jnp.arange(rows) % queries)[:, None]
    if start_B_T is not None:
        start = jnp.tile(start_B_T[:, first:end], (1, rows // queries))
        seen = (seen & (keys >= start[:, :, None]))[:, None]
    return jnp.where(seen, jnp.einsum("bkqe,bkse->bkqs", q_B_K_R_E, k_B_K_S_E), -jnp.inf)


def _attention_forward(
    q_B_K_G_T_E: Array, k_B_K_T_E: Array, v_B_K_T_E: Array, start_B_T: Array | None
) -> tuple[Array, _Kept]:
    if has_attention(q_B_K_G_T_E.shape[-1]):
        made = _attend(q_B_K_G_T_E, k_B_K_T_E, v_B_K_T_E, start_B_T)
    else:
        made = _attend_in_blocks(q_B_K_G_T_E, k_B_K_T_E, v_B_K_T_E, start_B_T)
    out, log_sum = checkpoint_name(made, ATTENDED)  # type: ignore[no-untyped-call]
    return out, (q_B_K_G_T_E, k_B_K_T_E, v_B_K_T_E, start_B_T, out, log_sum)


def _attend(
    q_B_K_G_T_E: Array, k_B_K_T_E: Array, v_B_K_T_E: Array, start_B_T: Array | None
) -> tuple[Array, Array]:
    """The result and the logarithm of each query's sum."""
    batch, groups, heads, time, size = q_B_K_G_T_E.shape
    own_B_Q = jnp.tile(jnp.arange(1, time + 1), (batch, heads))
    since_B_Q = jnp.zeros_like(own_B_Q) if start_B_T is None else jnp.tile(start_B_T, (1, heads))
    nothing = Piece(jnp.zeros((batch, groups, size, 0)), jnp.zeros((batch, groups, 0, size)))
    new = Piece(k_B_K_T_E.swapaxes(2, 3), v_B_K_T_E)
    queries = q_B_K_G_T_E.reshape(batch, groups, heads * time, size)
    none = jnp.zeros(batch, jnp.int32)
    mixed, top, total = own_attention(queries, nothing, new, none, own_B_Q, since_B_Q)
    log_sum = (top + jnp.log(total)).reshape(batch, groups, heads, time, 1)
    return mixed.reshape(q_B_K_G_T_E.shape), log_sum


def _attend_in_blocks(
    q_B_K_G_T_E: Array, k_B_K_T_E: Array, v_B_K_T_E: Array, start_B_T: Array | None
) -> tuple[Array, Array]:
    """The same as XLA computes it."""
    batch, groups, heads, time, _ = q_B_K_G_T_E.shape
    blocks, sums = [], []
    for first, end in _query_blocks(time):
        shape = (batch, groups, heads, end - first, -1)
        scores = _block_scores(_as_rows(q_B_K_G_T_E, first, end), k_B_K_T_E[:, :, :end], start_B_T, first)
        top = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        # Divided after the product, not before: there is less of it.
        mixed = jnp.einsum("bkqs,bkse->bkqe", weights, v_B_K_T_E[:, :, :end]) / total
        blocks.append(mixed.reshape(shape))
        sums.append((top + jnp.log(total)).reshape(shape))
    return jnp.concatenate(blocks, axis=3), jnp.concatenate(sums, axis=3)


def _attention_backward(kept: _Kept, into_out: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, start, out, log_sum = kept
    batch, groups, heads, time, size = q.shape
    if has_attention(size):
        shared = (into_out * out).sum(axis=-1).reshape(batch, groups, -1)
        since = jnp.zeros((batch, time), jnp.int32) if start is None else start
        queries, into = (x.reshape(batch, groups, heads * time, size) for x in (q, into_out))
        sums = log_sum.reshape(batch, groups, heads * time)
        found = own_attention_backward(queries, k, v, into, sums, shared, since)
        return found.q.reshape(q.shape), found.k, found.v, None
    into_q, into_k, into_v = [], jnp.zeros_like(k), jnp.zeros_like(v)
    for first, end in _query_blocks(time):
        queries, into = _as_rows(q, first, end), _as_rows(into_out, first, end)
        scores = _block_scores(queries, k[:, :, :end], start, first)
        weights = jnp.exp(scores - _as_rows(log_sum, first, end))
        shared = (into * _as_rows(out, first, end)).sum(axis=-1, keepdims=True)
        into_scores = weights * (jnp.einsum("bkqe,bkse->bkqs", into, v[:, :, :end]) - shared)
        into_q.append(
            jnp.einsum("bkqs,bkse->bkqe", into_scores, k[:, :, :end]).reshape(batch, groups, heads, -1, size)
        )
        into_k = into_k.at[:, :, :end].add(jnp.einsum("bkqs,bkqe->bkse", into_scores, queries))
        into_v = into_v.at[:, :, :end].add(jnp.einsum("bkqs,bkqe->bkse", weights, into))
    return jnp.concatenate(into_q, axis=3), into_k, into_v, None


_attention.defvjp(_attention_forward, _attention_backward)
