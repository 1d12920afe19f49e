"""The compiled steps of sampling: one block of prefill, and a chunk of decoding with a key/value cache.

Both are pure functions of one snapshot's weights, LoRA already merged and projections fused. Rows do not
influence each other and every sum runs in an order that the batch does not change, so that a seeded sample
gives the same tokens whatever shares its batch. Axis names are those of `llama`; S is cache positions and C
the tokens of one call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from termrl.engine.architecture import LlamaConfig
from termrl.engine.cached_attention import attend
from termrl.engine.choosing import Choice, pick
from termrl.engine.llama import (
    Layers,
    Params,
    qkv_biases,
    rope_tables,
    rotate,
    unembed_matrix,
)
from termrl.engine.norms import stable_rms_norm
from termrl.engine.own_attention import Piece
from termrl.engine.products import Packed, pack, product

DECODE_CHUNK = 8

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


def _norm(x: Array, weight: Array, config: LlamaConfig) -> Array:
    return stable_rms_norm(x, weight, config.rms_norm_eps)


def _project(
    x: Array, layer: SamplerLayer, config: LlamaConfig, cos: Array, sin: Array, count: Array
) -> tuple[Array, ...]:
    """Rotated queries [B, K, G C, E] scaled for attention, rotated keys and values [B, K, C, E]."""
    rows, steps = x.shape[:2]
    groups, size = config.num_key_value_heads, config.head_size
    heads = config.num_attention_heads
    qkv = product(_norm(x, layer.attn_norm, config), layer.qkv, count=count)
    if layer.qkv_bias is not None:
        qkv = qkv + layer.qkv_bias
    split = qkv.reshape(rows, steps, heads + 2 * groups, size).transpose(0, 2, 1, 3)
    q, k = split[:, :heads], split[:, heads : heads + groups]
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = _norm(q, layer.q_norm, config), _norm(k, layer.k_norm, config)
    q = rotate(q, cos, sin) * (1.0 / math.sqrt(size))
    k = rotate(k, cos, sin)
    return q.reshape(rows, groups, -1, size), k, split[:, heads + groups :]


def _finish_layer(
    x: Array, mixed_B_K_Q_E: Array, layer: SamplerLayer, config: LlamaConfig, count: Array
) -> Array:
    rows, steps = x.shape[:2]
    heads, size = config.num_attention_heads, config.head_size
    mixed = mixed_B_K_Q_E.reshape(rows, heads, steps, size).transpose(0, 2, 1, 3)
    x = x + product(mixed.reshape(rows, steps, heads * size), layer.o, count=count)
    gate, up = jnp.split(product(_norm(x, layer.mlp_norm, config), layer.gate_up, count=count), 2, axis=-1)
    return x + product(jax.nn.silu(gate) * up, layer.down, count=count)


def _last(wanted: Array) -> Array:
    """How many there are up to the last that is wanted."""
    flat = wanted.reshape(-1)
    return jnp.where(flat, jnp.arange(1, flat.size + 1), 0).max()


class Block(NamedTuple):
    """Keys [L, B, K, E, S] and values [L, B, K, S, E] of a run of positions; without B for one row."""

    keys: Any
    values: Any


@functools.partial(jax.jit, static_argnums=1)
def prefill_block(
    weights: SamplerWeights,
    config: LlamaConfig,
    past: Cache,
    tokens_B_C: Array,
    start_B: Array,
    size_B: Array,
) -> Block:
    """Keys and values of the next tokens of every row, the first `size_B` of which count.

    `past` holds those of the `start_B` before them.
    """
    steps = jnp.arange(tokens_B_C.shape[1])
    wanted_B_C = steps < size_B[:, None]
    count = _last(wanted_B_C)
    heads = config.num_attention_heads // config.num_key_value_heads
    own_B_Q = jnp.tile(jnp.where(wanted_B_C, steps + 1, 0), (1, heads))
    cos, sin = rope_tables(config, start_B[:, None] + steps)
    cos, sin = cos[:, None], sin[:, None]
    x = weights.embed[tokens_B_C].astype(jnp.float32)
    all_keys, all_values = [], []
    for n, layer in enumerate(weights.layers):
        q, k, v = _project(x, layer, config, cos, sin, count)
        new = Piece(k.swapaxes(2, 3), v)
        all_keys.append(new.keys)
        all_values.append(new.values)
        if n + 1 == len(weights.layers):
            break
        mixed = attend(q, Piece(past.keys[n], past.values[n]), new, start_B, own_B_Q)
        x = _finish_layer(x, mixed, layer, config, count)
    return Block(jnp.stack(all_keys), jnp.stack(all_values))


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
    heads = config.num_attention_heads // groups

    def still_running(decoded: Decoded) -> Array:
        running: Array = ~decoded.stopped_B & (decoded.count_B < choice.limit_B)
        return running

    def step(state: tuple[Array, Array, Cache, Decoded]) -> tuple[Array, Array, Cache, Decoded]:
        i, token, fresh, decoded = state
        cos, sin = rope_tables(config, position_B + i)
        cos, sin = cos[:, None, None], sin[:, None, None]
        running = still_running(decoded)
        count = _last(running)
        own_B_Q = jnp.tile(jnp.where(running, i + 1, 0)[:, None], (1, heads))
        x = weights.embed[token][:, None].astype(jnp.float32)
        keys, values = [], []
        for n, layer in enumerate(weights.layers):
            q, k, v = _project(x, layer, config, cos, sin, count)
            k_new = jax.lax.dynamic_update_slice(fresh.keys[n], k.swapaxes(2, 3), (0, 0, 0, i))
            v_new = jax.lax.dynamic_update_slice(fresh.values[n], v, (0, 0, i, 0))
            keys.append(k_new)
            values.append(v_new)
            past = Piece(cache.keys[n], cache.values[n])
            mixed = attend(q, past, Piece(k_new, v_new), position_B, own_B_Q)
            x = _finish_layer(x, mixed, layer, config, count)
        hidden = _norm(x[:, 0], weights.final_norm, config)
        picked, logprob = pick(product(hidden, weights.unembed, count=count), choice, i)
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
        return jnp.logical_and(i < steps, still_running(decoded).any())

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
