"""The compiled steps of sampling: one block of prefill, and a chunk of decoding with a key/value cache.

Both are pure functions of one snapshot's weights, LoRA already merged and projections fused. Rows do not
influence each other and every sum runs in an order that the batch does not change, so that a seeded sample
gives the same tokens whatever shares its batch. Axis names are those of `llama`; S is cache positions and C
the tokens of one call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from termrl.engine.architecture import LlamaConfig
from termrl.engine.attention import ATTENTION_BLOCK
from termrl.engine.choosing import Choice, pick, row_sum
from termrl.engine.llama import (
    Layers,
    Params,
    qkv_biases,
    rope_tables,
    rotate,
    unembed_matrix,
)
from termrl.engine.products import Packed, pack, product

DECODE_CHUNK = 8
_ONE_ORDER = 1024
_UNSEEN = -1e30

_Piece = tuple[Array, Array, Array]
"""Keys [B, K, E, S], values [B, K, S, E] and which of them are seen."""

Matrix = Array | Packed


class SamplerLayer(NamedTuple):
    attn_norm: Array
    qkv: Matrix
    o: Matrix
    mlp_norm: Array
    gate_up: Matrix
    down: Matrix
    qkv_bias: Array | None
    q_norm: Array | None
    k_norm: Array | None


class SamplerWeights(NamedTuple):
    """One snapshot, ready to sample from: a tuple of layers, so that no step slices a stack."""

    embed: Array
    layers: tuple[SamplerLayer, ...]
    final_norm: Array
    unembed: Matrix


class Cache(NamedTuple):
    """Keys [B, K, E, S] and values [B, K, S, E] of every layer."""

    keys: tuple[Any, ...]
    values: tuple[Any, ...]


class Decoded(NamedTuple):
    tokens_B_C: Array
    logprobs_B_C: Array
    count_B: Array
    stopped_B: Array


@functools.partial(jax.jit, static_argnums=1)
def sampler_weights(params: Params, config: LlamaConfig) -> SamplerWeights:
    """Fuses the projections of already merged weights."""
    stacked = params.layers
    layers = tuple(
        SamplerLayer(
            attn_norm=stacked.attn_norm[i],
            qkv=pack(jnp.concatenate([stacked.q[i], stacked.k[i], stacked.v[i]], axis=1)),
            o=pack(stacked.o[i]),
            mlp_norm=stacked.mlp_norm[i],
            gate_up=pack(jnp.concatenate([stacked.gate[i], stacked.up[i]], axis=1)),
            down=pack(stacked.down[i]),
            qkv_bias=_joined_bias(stacked, i),
            q_norm=None if stacked.q_norm is None else stacked.q_norm[i],
            k_norm=None if stacked.k_norm is None else stacked.k_norm[i],
        )
        for i in range(config.num_hidden_layers)
    )
    unembed = pack(unembed_matrix(params).T)
    return SamplerWeights(params.embed, layers, params.final_norm, unembed)


def _joined_bias(layers: Layers, i: int) -> Array | None:
    biases = qkv_biases(layers)
    return None if biases is None else jnp.concatenate([bias[i] for bias in biases])


def make_cache(
    config: LlamaConfig, rows: int, positions: int, make: Callable[[tuple[int, ...]], Any]
) -> Cache:
    groups, size = config.num_key_value_heads, config.head_size
    layers = range(config.num_hidden_layers)
    return Cache(
        tuple(make((rows, groups, size, positions)) for _ in layers),
        tuple(make((rows, groups, positions, size)) for _ in layers),
    )


def _sum(x: Array, config: LlamaConfig) -> Array:
    """Over the last axis; in a big model, which shares its sums among cores anyway, in whatever order."""
    return row_sum(x) if config.is_small else x.sum(axis=-1, keepdims=True)


def _norm(x: Array, weight: Array, config: LlamaConfig) -> Array:
    return x * jax.lax.rsqrt(_sum(x * x, config) / x.shape[-1] + config.rms_norm_eps) * weight


def _project(x: Array, layer: SamplerLayer, config: LlamaConfig, cos: Array, sin: Array) -> tuple[Array, ...]:
    """Rotated queries [B, K, G, C, E] scaled for attention, rotated keys and values [B, K, C, E]."""
    rows, steps = x.shape[:2]
    groups, size = config.num_key_value_heads, config.head_size
    heads = config.num_attention_heads
    qkv = product(_norm(x, layer.attn_norm, config), layer.qkv)
    if layer.qkv_bias is not None:
        qkv = qkv + layer.qkv_bias
    split = qkv.reshape(rows, steps, heads + 2 * groups, size).transpose(0, 2, 1, 3)
    q, k = split[:, :heads], split[:, heads : heads + groups]
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _norm(q, layer.q_norm, config), _norm(k, layer.k_norm, config)
    q = rotate(q, cos, sin) * (1.0 / math.sqrt(size))
    k = rotate(k, cos, sin)
    return q.reshape(rows, groups, heads // groups, steps, size), k, split[:, heads + groups :]


def _finish_layer(x: Array, mixed_B_H_C_E: Array, layer: SamplerLayer, config: LlamaConfig) -> Array:
    rows, heads, steps, size = mixed_B_H_C_E.shape
    x = x + product(mixed_B_H_C_E.transpose(0, 2, 1, 3).reshape(rows, steps, heads * size), layer.o)
    gate, up = jnp.split(product(_norm(x, layer.mlp_norm, config), layer.gate_up), 2, axis=-1)
    return x + product(jax.nn.silu(gate) * up, layer.down)


class Block(NamedTuple):
    """Keys [L, B, K, E, S] and values [L, B, K, S, E] of a run of positions; without B for one row."""

    keys: Any
    values: Any


@functools.partial(jax.jit, static_argnums=1)
def prefill_block(
    weights: SamplerWeights, config: LlamaConfig, past: Cache, tokens_B_C: Array, start_B: Array
) -> Block:
    """Keys and values of the next tokens of every row; `past` holds those of the `start_B` before them."""
    steps = tokens_B_C.shape[1]
    held = past.keys[0].shape[3]
    cos, sin = rope_tables(config, start_B[:, None] + jnp.arange(steps))
    cos, sin = cos[:, None], sin[:, None]
    seen = (jnp.arange(held) < start_B[:, None])[:, None, None]
    x = weights.embed[tokens_B_C].astype(jnp.float32)
    all_keys, all_values = [], []
    for n, layer in enumerate(weights.layers):
        q, k, v = _project(x, layer, config, cos, sin)
        k = k.swapaxes(2, 3)
        all_keys.append(k)
        all_values.append(v)
        if n + 1 == len(weights.layers):
            break
        mixed = _attend_causally(q, (past.keys[n], past.values[n], seen), k, v, config)
        x = _finish_layer(x, mixed, layer, config)
    return Block(jnp.stack(all_keys), jnp.stack(all_values))


def _attend_causally(
    q_B_K_G_C_E: Array, past: _Piece, new_keys: Array, new_values: Array, config: LlamaConfig
) -> Array:
    """[B, H, C, E]: attention of a run of positions over a cache and themselves, in blocks of queries.

    No block looks at what comes after it.
    """
    rows, groups, heads, steps, size = q_B_K_G_C_E.shape
    # Many queries keep a core busy as they are; a small model's sums have one order, whoever asks.
    few = not config.is_small and steps <= ATTENTION_BLOCK
    attend = _attend_piece_by_piece if few else _attend
    held = _cut(past, whole=not few and not config.is_small)
    blocks = []
    for first in range(0, steps, ATTENTION_BLOCK):
        end = min(first + ATTENTION_BLOCK, steps)
        causal = jnp.arange(end) <= jnp.tile(jnp.arange(first, end), heads)[:, None]
        queries = q_B_K_G_C_E[:, :, :, first:end].reshape(rows, groups, -1, size)
        own = new_keys[..., :end], new_values[..., :end, :], causal
        mixed = attend(queries, [*held, own], config)
        blocks.append(mixed.reshape(rows, groups * heads, end - first, size))
    return blocks[0] if len(blocks) == 1 else jnp.concatenate(blocks, axis=2)


def _attend(q_B_K_Q_E: Array, pieces: Sequence[_Piece], config: LlamaConfig) -> Array:
    """Attention over keys and values in pieces, each under a mask; one softmax spans them all."""
    scores = [
        jnp.where(mask, jnp.einsum("bkqe,bkes->bkqs", q_B_K_Q_E, keys), -jnp.inf) for keys, _, mask in pieces
    ]
    top = functools.reduce(jnp.maximum, (score.max(-1, keepdims=True) for score in scores))
    total, mixed = jnp.zeros(()), jnp.zeros(())
    for score, (_, values, _) in zip(scores, pieces, strict=True):
        weight = jnp.exp(score - top)
        total = total + _sum(weight, config)
        mixed = mixed + jnp.einsum("bkqs,bkse->bkqe", weight, values)
    return mixed / total


def _attend_piece_by_piece(q_B_K_Q_E: Array, pieces: Sequence[_Piece], config: LlamaConfig) -> Array:
    """The same with a softmax for each piece, weighed afterwards.

    A piece's scores are done with while they are in a core's own memory.
    """
    tops, totals, mixes = [], [], []
    for keys, values, mask in pieces:
        # A number, not infinity: of some pieces nothing is seen, which then weigh nothing.
        score = jnp.where(mask, jnp.einsum("bkqe,bkes->bkqs", q_B_K_Q_E, keys), _UNSEEN)
        tops.append(score.max(-1, keepdims=True))
        weight = jnp.exp(score - tops[-1])
        totals.append(_sum(weight, config))
        mixes.append(jnp.einsum("bkqs,bkse->bkqe", weight, values))
    top = functools.reduce(jnp.maximum, tops)
    shares = [jnp.exp(each - top) for each in tops]
    mixed = sum(share * mix for share, mix in zip(shares, mixes, strict=True))
    total = sum(share * each for share, each in zip(shares, totals, strict=True))
    return jnp.asarray(mixed / total)


def _cut(piece: _Piece, *, whole: bool) -> list[_Piece]:
    """Whole or in pieces of 1024 positions; nothing where it has none.

    XLA sums products of up to 1024 positions in one order and of more in another. To what a small model
    computes, a longer cache then only adds zeros.
    """
    keys, values, seen = piece
    width = max(keys.shape[-1], 1) if whole else _ONE_ORDER
    spans = (slice(at, at + width) for at in range(0, keys.shape[-1], width))
    return [(keys[..., span], values[..., span, :], seen[..., span]) for span in spans]


@functools.partial(jax.jit, donate_argnums=0)
def load_row(cache: Cache, row: Array, prompt: Block) -> Cache:
    """Puts the keys and values of one prompt, [L, K, E, S] and [L, K, S, E], into a row of the cache."""

    def put(old: Array, new: Array) -> Array:
        return jax.lax.dynamic_update_slice(old, new[None], (row, 0, 0, 0))

    return Cache(
        tuple(put(old, prompt.keys[n]) for n, old in enumerate(cache.keys)),
        tuple(put(old, prompt.values[n]) for n, old in enumerate(cache.values)),
    )


@functools.partial(jax.jit, static_argnums=1, donate_argnums=2)
def decode_chunk(
    weights: SamplerWeights,
    config: LlamaConfig,
    cache: Cache,
    token_B: Array,
    position_B: Array,
    choice: Choice,
    steps: Array,
) -> tuple[Decoded, Cache]:
    """Samples up to `steps` tokens a row, from `token_B` at `position_B` on.

    A row ends at a stop id (which it keeps) or at its limit. The cache is read-only inside the loop: the
    chunk's own keys and values are held apart and joined at the end.
    """
    rows = token_B.shape[0]
    groups, size = config.num_key_value_heads, config.head_size
    positions = cache.values[0].shape[2]
    seen = (jnp.arange(positions)[None] < position_B[:, None])[:, None, None]

    def step(state: tuple[Array, Array, Cache, Decoded]) -> tuple[Array, Array, Cache, Decoded]:
        i, token, fresh, decoded = state
        cos, sin = rope_tables(config, position_B + i)
        cos, sin = cos[:, None, None], sin[:, None, None]
        recent = jnp.arange(DECODE_CHUNK) <= i
        x = weights.embed[token][:, None].astype(jnp.float32)
        keys, values = [], []
        for n, layer in enumerate(weights.layers):
            q, k, v = _project(x, layer, config, cos, sin)
            q = q[:, :, :, 0]
            k_new = jax.lax.dynamic_update_slice(fresh.keys[n], k.swapaxes(2, 3), (0, 0, 0, i))
            v_new = jax.lax.dynamic_update_slice(fresh.values[n], v, (0, 0, i, 0))
            keys.append(k_new)
            values.append(v_new)
            past = cache.keys[n], cache.values[n], seen
            held = _cut(past, whole=not config.is_small)
            mixed = _attend(q, [*held, (k_new, v_new, recent)], config)
            x = _finish_layer(x, mixed.reshape(rows, -1, 1, size), layer, config)
        hidden = _norm(x[:, 0], weights.final_norm, config)
        picked, logprob = pick(product(hidden, weights.unembed), choice, i)
        running = ~decoded.stopped_B & (decoded.count_B < choice.limit_B)
        stops = (picked[:, None] == choice.stop_ids_B_I).any(axis=1)
        decoded = Decoded(
            tokens_B_C=jax.lax.dynamic_update_slice(decoded.tokens_B_C, picked[:, None], (0, i)),
            logprobs_B_C=jax.lax.dynamic_update_slice(decoded.logprobs_B_C, logprob[:, None], (0, i)),
            count_B=decoded.count_B + running,
            stopped_B=decoded.stopped_B | (running & stops),
        )
        return i + 1, picked, Cache(tuple(keys), tuple(values)), decoded

    def goes_on(state: tuple[Array, Array, Cache, Decoded]) -> Array:
        i, _, _, decoded = state
        running: Array = ~decoded.stopped_B & (decoded.count_B < choice.limit_B)
        return jnp.logical_and(i < steps, running.any())

    layers = range(len(weights.layers))
    fresh = Cache(
        tuple(jnp.zeros((rows, groups, size, DECODE_CHUNK)) for _ in layers),
        tuple(jnp.zeros((rows, groups, DECODE_CHUNK, size)) for _ in layers),
    )
    decoded = Decoded(
        jnp.zeros((rows, DECODE_CHUNK), jnp.int32),
        jnp.zeros((rows, DECODE_CHUNK)),
        jnp.zeros(rows, jnp.int32),
        jnp.zeros(rows, bool),
    )
    _, _, fresh, decoded = jax.lax.while_loop(
        goes_on, step, (jnp.zeros((), jnp.int32), token_B, fresh, decoded)
    )

    def join(old: Array, new: Array, axis: int) -> Array:
        def one(old_row: Array, new_row: Array, at: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(old_row, new_row, at, axis=axis)

        return jax.vmap(one)(old, new, position_B)

    return decoded, Cache(
        tuple(join(old, new, 2) for old, new in zip(cache.keys, fresh.keys, strict=True)),
        tuple(join(old, new, 1) for old, new in zip(cache.values, fresh.values, strict=True)),
    )
