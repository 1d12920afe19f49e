"""What a prompt's positions would say: the most likely tokens, given tokens' logprobs, and draws.

Computed with the training forward, one sequence at a time, the vocabulary in blocks of rows. Row i of every
result is about the token at position i + 1.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from termrl.engine.architecture import LlamaConfig
from termrl.engine.batches import bucket_length
from termrl.engine.choosing import draw, in_blocks
from termrl.engine.llama import Params, hidden_states, unembed_matrix
from termrl.engine.products import product

_ROWS = 64


@dataclass(frozen=True)
class Extras:
    """What a request to sample asks about beside its answers; zeros and None ask nothing."""

    topk_prompt: int = 0
    topk_sample: int = 0
    targets: np.ndarray | None = None
    """Token ids to score, [len(prompt) - 1, K]; -1 for none."""
    sparse: tuple[np.ndarray, np.ndarray] | None = None
    """Row ends and columns, where the targets came as a sparse matrix and are answered as one."""
    draws: int = 0

    @property
    def about_prompt(self) -> bool:
        return bool(self.topk_prompt or self.draws or self.targets is not None)


class Scores(NamedTuple):
    top_ids: np.ndarray
    top_logprobs: np.ndarray
    target_logprobs: np.ndarray
    drawn_ids: np.ndarray
    drawn_logprobs: np.ndarray


@functools.partial(jax.jit, static_argnums=(1, 6))
def _score(
    params: Params,
    config: LlamaConfig,
    tokens_T: Array,
    targets_T_K: Array,
    uniform_T_A: Array,
    temperature: Array,
    top: int,
) -> tuple[Array, ...]:
    hidden = hidden_states(params, config, tokens_T[None])[0]
    unembed = unembed_matrix(params)

    def rows(block: tuple[Array, Array, Array]) -> tuple[Array, ...]:
        hidden_N_D, targets_N_K, uniform_N_A = block
        logits = product(hidden_N_D, unembed, turned=True)
        logprobs = logits - jax.nn.logsumexp(logits, axis=1, keepdims=True)
        top_logprobs, top_ids = jax.lax.top_k(logprobs, top)
        chosen = jnp.take_along_axis(logprobs, jnp.maximum(targets_N_K, 0), axis=1)
        scaled = logits / temperature
        weights = in_blocks(jnp.exp(scaled - scaled.max(axis=1, keepdims=True)))
        drawn = jax.lax.map(lambda uniform_N: draw(weights, uniform_N), uniform_N_A.T).T
        return (
            top_ids,
            top_logprobs,
            jnp.where(targets_N_K >= 0, chosen, 0.0),
            drawn,
            jnp.take_along_axis(logprobs, drawn, axis=1),
        )

    blocks = (
        hidden.reshape(-1, _ROWS, hidden.shape[1]),
        targets_T_K.reshape(-1, _ROWS, targets_T_K.shape[1]),
        uniform_T_A.reshape(-1, _ROWS, uniform_T_A.shape[1]),
    )
    out: tuple[Array, ...] = jax.lax.map(rows, blocks)
    return tuple(part.reshape(-1, part.shape[-1]) for part in out)


def score(
    params: Params,
    config: LlamaConfig,
    tokens: np.ndarray,
    *,
    top: int = 0,
    targets: np.ndarray | None = None,
    draws: int = 0,
    temperature: float = 1.0,
    seed: int = 0,
) -> Scores:
    """Scores for every position after the first, [len(tokens) - 1, …]."""
    size = len(tokens) - 1
    length = bucket_length(len(tokens))
    padded = np.zeros(length, np.int32)
    padded[: size + 1] = tokens
    wanted = np.full((length, _width(0 if targets is None else targets.shape[1])), -1, np.int32)
    if targets is not None:
        wanted[:size, : targets.shape[1]] = targets
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, 1 << 32]))
    uniform = generator.random((length, _width(draws)), dtype=np.float32)
    # A temperature of 0 draws the likeliest token.
    heat = jnp.float32(max(temperature, 1e-6))
    limit = min(_width(top), config.vocab_size)
    found: list[Any] = [
        np.asarray(part)[:size]
        for part in _score(
            params, config, jnp.asarray(padded), jnp.asarray(wanted), jnp.asarray(uniform), heat, limit
        )
    ]
    columns = 0 if targets is None else targets.shape[1]
    return Scores(
        found[0][:, :top], found[1][:, :top], found[2][:, :columns], found[3][:, :draws], found[4][:, :draws]
    )


def _width(count: int) -> int:
    """Powers of two, so that few shapes are compiled."""
    return 1 << max(count - 1, 0).bit_length()
