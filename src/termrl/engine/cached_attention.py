"""Attention of new positions over a key/value cache and themselves: in machine code of our own on one CPU, in
XLA's elsewhere.

Our own (`kernels`) reads what is seen and nothing else, and what a query gets does not depend on the others.
Axis names are those of `decoding`; Q is the queries of a group and N the new positions.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import Array

from termrl.engine.own_attention import Piece, has_attention, own_attention
from termrl.engine.products import row_sum

_ONE_ORDER = 1024
"""XLA sums products of up to so many positions in one order and of more in another. Cut there, a longer cache
only adds zeros to what is computed."""
_QUERIES = 384


def attend(q_B_K_Q_E: Array, past: Piece, new: Piece, seen_B: Array, own_B_Q: Array) -> Array:
    """[B, K, Q, E]: a query sees the first `seen_B` positions of the past and the first `own_B_Q` new ones.

    What a query that sees none gets may be anything finite.
    """
    if has_attention(q_B_K_Q_E.shape[-1]):
        return own_attention(q_B_K_Q_E, past, new, seen_B, own_B_Q, jnp.zeros_like(own_B_Q))[0]
    seen = (jnp.arange(past.keys.shape[-1]) < seen_B[:, None])[:, None, None]
    own = jnp.arange(new.keys.shape[-1]) < jnp.maximum(own_B_Q, 1)[:, None, :, None]
    held = _cut(past, seen)
    # Some queries at a time: of no more are the scores held.
    blocks = [slice(at, at + _QUERIES) for at in range(0, q_B_K_Q_E.shape[2], _QUERIES)]
    mixed = [_attend(q_B_K_Q_E[:, :, rows], [*held, (*new, own[:, :, rows])]) for rows in blocks]
    return mixed[0] if len(mixed) == 1 else jnp.concatenate(mixed, axis=2)


_Masked = tuple[Array, Array, Array]
"""Keys, values and which of them are seen."""


def _attend(q_B_K_Q_E: Array, pieces: list[_Masked]) -> Array:
    """One softmax spans all pieces."""
    scores = [
        jnp.where(mask, jnp.einsum("bkqe,bkes->bkqs", q_B_K_Q_E, keys), -jnp.inf) for keys, _, mask in pieces
    ]
    top = functools.reduce(jnp.maximum, (score.max(-1, keepdims=True) for score in scores))
    total, mixed = jnp.zeros(()), jnp.zeros(())
    for score, (_, values, _) in zip(scores, pieces, strict=True):
        weight = jnp.exp(score - top)
        total = total + row_sum(weight)
        mixed = mixed + jnp.einsum("bkqs,bkse->bkqe", weight, values)
    return mixed / total


def _cut(past: Piece, seen: Array) -> list[_Masked]:
    """Nothing where it has no positions."""
    spans = (slice(at, at + _ONE_ORDER) for at in range(0, past.keys.shape[-1], _ONE_ORDER))
    return [(past.keys[..., span], past.values[..., span, :], seen[..., span]) for span in spans]
