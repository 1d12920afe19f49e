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
