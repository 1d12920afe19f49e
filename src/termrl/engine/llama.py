"""A Llama-style decoder as pure functions over a pytree: parameters and full-sequence forward.

Layers are stacked on axis 0 and run by `lax.scan`. Matrices are stored [in, out], in float32 or bfloat16;
norms, attention and logits compute in float32. Biases on q, k, v (Qwen2) and norms of q and k (Qwen3) are
None where a model has none. Rotary embedding is Hugging Face's half-rotation. A row holds one sequence, or
several one after the other, told apart by the place where each starts; what pads a row stands at its end:
attention is causal, so padding never reaches a real token. Axis names: B batch, T time, D hidden, F
intermediate, H heads, K key/value heads, E head size, V vocabulary, L layers, N flattened tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from termrl.engine.architecture import LlamaConfig
from termrl.engine.attention import ATTENDED, causal_attention
from termrl.engine.products import MULTIPLIED, adapted_linear, as_written, frozen_linear, linear

KEPT_TOKENS = 2048
"""Tokens of a batch up to which the products of an adapted model are kept for the backward pass."""
LOGIT_BUDGET = 1 << 24  # logits held at once, in floats


class Layers(NamedTuple):
    """Every field has a leading axis L."""

    attn_norm: Array
    q: Array
    k: Array
    v: Array
    o: Array
    mlp_norm: Array
    gate: Array
    up: Array
    down: Array
    q_bias: Array | None = None
    k_bias: Array | None = None
    v_bias: Array | None = None
    q_norm: Array | None = None
    k_norm: Array | None = None


class Params(NamedTuple):
    """`embed` and `unembed` are [V, D]; `unembed` is None where it is tied to `embed`."""

    embed: Array
    layers: Layers
    final_norm: Array
    unembed: Array | None


def qkv_biases(layers: Layers) -> tuple[Array, Array, Array] | None:
    if layers.q_bias is None or layers.k_bias is None or layers.v_bias is None:
        return None
    return layers.q_bias, layers.k_bias, layers.v_bias


def init_params(config: LlamaConfig, seed: int) -> Params:
    """Fresh weights: normal with deviation 0.02, residual outputs scaled down by depth, norms at one."""
    rng = np.random.default_rng(seed)
    depth, hidden, inner = config.num_hidden_layers, config.hidden_size, config.intermediate_size
    q_width = config.num_attention_heads * config.head_size
    kv_width = config.num_key_value_heads * config.head_size
    residual = 0.02 / math.sqrt(2 * depth)

    def normal(*shape: int, scale: float = 0.02) -> Array:
        return jnp.asarray(rng.standard_normal(shape, dtype=np.float32) * np.float32(scale))

    return Params(
        embed=normal(config.vocab_size, hidden),
        layers=Layers(
            attn_norm=jnp.ones((depth, hidden)),
            q=normal(depth, hidden, q_width),
            k=normal(depth, hidden, kv_width),
            v=normal(depth, hidden, kv_width),
            o=normal(depth, q_width, hidden, scale=residual),
            mlp_norm=jnp.ones((depth, hidden)),
            gate=normal(depth, hidden, inner),
            up=normal(depth, hidden, inner),
            down=normal(depth, inner, hidden, scale=residual),
            q_bias=normal(depth, q_width) if config.attention_bias else None,
            k_bias=normal(depth, kv_width) if config.attention_bias else None,
            v_bias=normal(depth, kv_width) if config.attention_bias else None,
            q_norm=jnp.ones((depth, config.head_size)) if config.qk_norm else None,
            k_norm=jnp.ones((depth, config.head_size)) if config.qk_norm else None,
        ),
        final_norm=jnp.ones((hidden,)),
        unembed=None if config.tie_word_embeddings else normal(config.vocab_size, hidden),
    )


def unembed_matrix(params: Params) -> Array:
    return params.embed if params.unembed is None else params.unembed


Adapter = Mapping[str, Mapping[str, Array]]
"""Matrix name -> {"a", "b"}: updates `a @ b`, already scaled, that the weights have in them."""


def _adapted(x_N_I: Array, weight_I_O: Array, pair: Mapping[str, Array] | None) -> Array:
    if pair is None:
        return frozen_linear(x_N_I, weight_I_O)
    return adapted_linear(x_N_I, weight_I_O, pair["a"], pair["b"])


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope_tables(config: LlamaConfig, positions: Array) -> tuple[Array, Array]:
    """Cosine and sine, each `positions.shape + (E,)`."""
    frequency = jnp.asarray(config.rope_frequencies(), jnp.float32)
    angle = positions[..., None].astype(jnp.float32) * frequency
    angle = jnp.concatenate([angle, angle], axis=-1)
    # Else XLA computes cosine and sine anew in every layer.
    return as_written(jnp.cos(angle)), as_written(jnp.sin(angle))


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-second, first], axis=-1) * sin


def hidden_states(
    params: Params,
    config: LlamaConfig,
    tokens_B_T: Array,
    adapter: Adapter | None = None,
    start_B_T: Array | None = None,
) -> Array:
    """The normalised last hidden state of every position, [B, T, D].

    `start_B_T` says where in its row a token's sequence starts; without it a row is one sequence. With an
    adapter, which the weights have in them already, only the adapter gets gradients, and what a layer
    computed is recomputed in the backward pass, but for the products with weights and what attention gave; of
    long sequences, those too.
    """
    batch, time = tokens_B_T.shape
    cos, sin = rope_tables(config, jnp.arange(time))
    if start_B_T is not None:
        cos, sin = (table[:, None] for table in rope_tables(config, jnp.arange(time) - start_B_T))

    def heads(x: Array, count: int) -> Array:
        return x.reshape(batch, time, count, config.head_size).transpose(0, 2, 1, 3)

    def block(x: Array, inputs: tuple[Layers, Adapter | None]) -> tuple[Array, None]:
        layer, pairs = inputs
        normed = rms_norm(x, layer.attn_norm, config.rms_norm_eps)
        biases = qkv_biases(layer)
        if pairs is None:
            qkv = linear(normed, jnp.concatenate([layer.q, layer.k, layer.v], axis=1))
            if biases is not None:
                qkv = qkv + jnp.concatenate(biases)
            q, k, v = jnp.split(qkv, [layer.q.shape[1], layer.q.shape[1] + layer.k.shape[1]], axis=-1)
        else:
            q, k, v = (_adapted(normed, getattr(layer, name), pairs.get(name)) for name in "qkv")
            if biases is not None:
                q, k, v = (part + bias for part, bias in zip((q, k, v), biases, strict=True))
        q, k = heads(q, config.num_attention_heads), heads(k, config.num_key_value_heads)
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = rms_norm(k, layer.k_norm, config.rms_norm_eps)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = causal_attention(q, k, heads(v, config.num_key_value_heads), start_B_T)
        mixed = mixed.transpose(0, 2, 1, 3).reshape(batch * time, -1)
        if pairs is None:
            x = x + linear(mixed, layer.o)
            normed = rms_norm(x, layer.mlp_norm, config.rms_norm_eps)
            gate, up = jnp.split(linear(normed, jnp.concatenate([layer.gate, layer.up], axis=1)), 2, axis=-1)
            return x + linear(jax.nn.silu(gate) * up, layer.down), None
        x = x + _adapted(mixed, layer.o, pairs.get("o"))
        normed = rms_norm(x, layer.mlp_norm, config.rms_norm_eps)
        gate = _adapted(normed, layer.gate, pairs.get("gate"))
        up = _adapted(normed, layer.up, pairs.get("up"))
        return x + _adapted(jax.nn.silu(gate) * up, layer.down, pairs.get("down")), None

    embedded = params.embed[tokens_B_T.reshape(-1)].astype(jnp.float32)
    run = block
    if adapter is not None:
        keep = jax.checkpoint_policies.save_from_both_policies(
            jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
            jax.checkpoint_policies.save_only_these_names(ATTENDED, MULTIPLIED),
        )
        run = jax.checkpoint(block, policy=keep if batch * time <= KEPT_TOKENS else None)
        adapter = {name: pair for name, pair in adapter.items() if name != "unembed"}
    x, _ = jax.lax.scan(run, embedded, (params.layers, adapter))
    return rms_norm(x, params.final_norm, config.rms_norm_eps).reshape(batch, time, -1)


def rows_logprobs(
    unembed_V_D: Array, hidden_N_D: Array, targets_N: Array, pair: Mapping[str, Array] | None = None
) -> Array:
    if pair is None:
        logits = linear(hidden_N_D, unembed_V_D, True)
    else:
        logits = adapted_linear(hidden_N_D, unembed_V_D, pair["a"], pair["b"], True)
    if targets_N.ndim == 2:
        chosen = jnp.take_along_axis(logits, targets_N, axis=1)
        return chosen - jax.nn.logsumexp(logits, axis=1, keepdims=True)
    # A masked sum rather than an index: the backward pass of indexing is a slow scatter.
    target = jnp.arange(logits.shape[1]) == targets_N[:, None]
    chosen = jnp.where(target, logits, 0.0).sum(axis=1)
    return chosen - jax.nn.logsumexp(logits, axis=1)


def chunk_rows(rows: int, vocab: int) -> int:
    """How many rows are projected onto the vocabulary at once."""
    while rows * vocab > LOGIT_BUDGET and rows % 2 == 0:
        rows //= 2
    return rows


def token_logprobs(
    unembed_V_D: Array, hidden_N_D: Array, targets_N: Array, pair: Mapping[str, Array] | None = None
) -> Array:
    """log p(target | hidden) of one target a row, or of several, [N, K].

    The vocabulary is projected in chunks of rows where it is big.
    """
    rows = targets_N.shape[0]
    chunk = chunk_rows(rows, unembed_V_D.shape[0])
    if chunk == rows:
        return rows_logprobs(unembed_V_D, hidden_N_D, targets_N, pair)
    project = jax.checkpoint(lambda rows: rows_logprobs(unembed_V_D, rows[0], rows[1], pair))
    blocks = (
        hidden_N_D.reshape(-1, chunk, hidden_N_D.shape[1]),
        targets_N.reshape(-1, chunk, *targets_N.shape[1:]),
    )
    out: Array = jax.lax.map(project, blocks)
    return out.reshape(targets_N.shape)


def target_logprobs(
    params: Params,
    config: LlamaConfig,
    tokens_B_T: Array,
    targets_B_T: Array,
    adapter: Adapter | None = None,
    start_B_T: Array | None = None,
) -> Array:
    """log p(targets[b, t] | tokens[b, start : t + 1]), [B, T]; [B, T, K] for K targets a position."""
    hidden = hidden_states(params, config, tokens_B_T, adapter, start_B_T)
    rows = tokens_B_T.size
    flat = token_logprobs(
        unembed_matrix(params),
        hidden.reshape(rows, hidden.shape[-1]),
        targets_B_T.reshape(rows, *targets_B_T.shape[2:]),
        None if adapter is None else adapter.get("unembed"),
    )
    return flat.reshape(targets_B_T.shape)
