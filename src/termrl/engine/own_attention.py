"""Attention in machine code of our own (`kernels`), for those who have something else where there is none.

Axis names are those of `llama`; Q is the queries of a group, a query of one head each, S positions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from termrl.engine.kernels.attention import MOST_HEAD_SIZE
from termrl.engine.kernels.registered import own_kernels


class Piece(NamedTuple):
    """Keys [B, K, E, S] and values [B, K, S, E] of a run of positions."""

    keys: Any
    values: Any


def has_attention(head_size: int) -> bool:
    return own_kernels() is not None and head_size <= MOST_HEAD_SIZE


def own_attention(
    q_B_K_Q_E: Array, past: Piece, new: Piece, seen_B: Array, own_B_Q: Array, since_B_Q: Array
) -> tuple[Array, Array, Array]:
    """A query sees the first `seen_B` positions of the past and the first `own_B_Q` new ones, but none before
    `since_B_Q`.

    Gives what comes of it, zeros where a query has no new position; and, [B, K, Q] each, the greatest of its
    scores and the sum of their exponentials with that taken out.
    """
    kernels = own_kernels()
    assert kernels is not None
    shapes = q_B_K_Q_E.shape, q_B_K_Q_E.shape[:-1], q_B_K_Q_E.shape[:-1]
    out = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]  # type: ignore[no-untyped-call]
    limits = (x.astype(jnp.int32) for x in (seen_B, own_B_Q, since_B_Q))
    mixed, top, total = jax.ffi.ffi_call(kernels.attention, out)(q_B_K_Q_E, *past, *new, *limits)
    return mixed, top, total


class Gradients(NamedTuple):
    """Of queries [B, K, Q, E], keys and values [B, K, T, E]."""

    q: Array
    k: Array
    v: Array


def own_attention_backward(
    q_B_K_Q_E: Array,
    k_B_K_T_E: Array,
    v_B_K_T_E: Array,
    into_B_K_Q_E: Array,
    log_sum_B_K_Q: Array,
    shared_B_K_Q: Array,
    since_B_T: Array,
) -> Gradients:
    """Of causal attention in which a position sees those from `since_B_T` on, which never falls.

    `log_sum_B_K_Q` are the logarithms of the sums of queries' exponentials, `shared_B_K_Q` the products of
    the gradients that come in with what the queries got.
    """
    kernels = own_kernels()
    assert kernels is not None
    positions = jnp.arange(since_B_T.shape[1])
    until_B_T = jax.vmap(lambda since_T: jnp.searchsorted(since_T, positions, side="right"))(since_B_T)
    limits = (x.astype(jnp.int32) for x in (since_B_T, until_B_T))
    given = (q_B_K_Q_E, k_B_K_T_E, v_B_K_T_E)
    out = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in given]  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(kernels.attention_backward, out)
    return Gradients(*call(*given, into_B_K_Q_E, log_sum_B_K_Q, shared_B_K_Q, *limits))
