"""The end of a training pass: hidden states to costs, and back, a chunk of the vocabulary's rows at a time.

Where a token's cost depends on its own logprob alone, a chunk's gradients can be had while its logits are
there: the forward pass computes them, the backward pass only scales them, and no logits are computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from termrl.engine.llama import chunk_rows, rows_logprobs
from termrl.engine.losses import TokenInputs, token_loss
from termrl.engine.rows import Rows

Pair = Mapping[str, Array] | None
_Columns = tuple[Array, TokenInputs, Array, Array]
_Out = tuple[Array, Array, Array]


def loss_by_chunks(hidden_B_T_D: Array, pair: Pair, unembed_V_D: Array, rows: Rows) -> _Out:
    """The sum of all costs, the logprobs and the costs, [B, T]; gradients reach hidden states and adapter."""
    shape = rows.targets.shape
    chunk = chunk_rows(rows.targets.size, unembed_V_D.shape[0])

    def chunks(column: Array) -> Array:
        # Chunks of one row each, as the losses want them.
        return jnp.reshape(column, (-1, 1, chunk))

    columns = chunks(rows.targets), TokenInputs(*map(chunks, rows.inputs))
    hidden = hidden_B_T_D.reshape(-1, chunk, hidden_B_T_D.shape[-1])
    total, logprobs, costs = _chunked(hidden, pair, unembed_V_D, (*columns, rows.loss, rows.coefficient))
    return total, logprobs.reshape(shape), costs.reshape(shape)


@jax.custom_vjp
def _chunked(hidden: Array, pair: Pair, unembed_V_D: Array, columns: _Columns) -> _Out:
    return _forward(hidden, pair, unembed_V_D, columns)[0]


def _forward(
    hidden: Array, pair: Pair, unembed_V_D: Array, columns: _Columns
) -> tuple[_Out, tuple[Array, Pair]]:
    targets, inputs, loss, coefficient = columns

    def cost_of(hidden_N_D: Array, pair: Pair, targets: Array, inputs: TokenInputs) -> tuple[Array, _Out]:
        logprobs = rows_logprobs(unembed_V_D, hidden_N_D, targets[0], pair)[None]
        costs = token_loss(loss, logprobs, inputs, coefficient)
        total = costs.sum()
        return total, (total, logprobs, costs)

    def one(into_pair: Pair, chunk: tuple[Array, Array, TokenInputs]) -> tuple[Pair, tuple[_Out, Array]]:
        part, targets, inputs = chunk
        (into_hidden, into), out = jax.grad(cost_of, argnums=(0, 1), has_aux=True)(
            part, pair, targets, inputs
        )
        return jax.tree.map(jnp.add, into_pair, into), (out, into_hidden)

    none = jax.tree.map(jnp.zeros_like, pair)
    into_pair, ((totals, logprobs, costs), into_hidden) = jax.lax.scan(one, none, (hidden, targets, inputs))
    return (totals.sum(), logprobs, costs), (into_hidden, into_pair)


def _backward(kept: tuple[Array, Pair], out: _Out) -> tuple[Array, Pair, None, None]:
    into_hidden, into_pair = kept
    scale = out[0]
    return into_hidden * scale, jax.tree.map(lambda x: x * scale, into_pair), None, None


_chunked.defvjp(_forward, _backward)
