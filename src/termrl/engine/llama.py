"""A Llama-style decoder as pure functions over a pytree: configuration, parameters, full-sequence forward.

Layers are stacked on axis 0 and run by `lax.scan`. Matrices are stored [in, out], everything computes in
float32. Rotary embedding is Hugging Face's half-rotation. Sequences are right-padded: attention is causal,
so padding never reaches a real token and needs no mask. Axis names: B batch, T time, D hidden, F
intermediate, H heads, K key/value heads, E head size, V vocabulary, L layers, N flattened tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from termrl.errors import UserError

ATTENTION_BLOCK = 128
LOGIT_BUDGET = 1 << 23  # logits held at once by target_logprobs, in floats


class ModelConfigError(UserError):
    """A config.json describes a model this engine cannot compute."""


@dataclass(frozen=True)
class LlamaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 2048
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> LlamaConfig:
        """Reads the fields of a Hugging Face config.json; refuses what would be computed wrongly."""
        if raw.get("model_type", "llama") != "llama":
            raise ModelConfigError(
                f"The engine runs models of type 'llama', not {raw['model_type']!r}; choose another model."
            )
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ModelConfigError(
                f"The engine has no rotary scaling, but config.json asks for {rope}; choose another model."
            )
        if raw.get("attention_bias") or raw.get("mlp_bias"):
            raise ModelConfigError(
                "The engine has no biases in attention and MLP, but config.json asks for them."
            )
        if raw.get("hidden_act", "silu") != "silu":
            raise ModelConfigError(
                f"The engine computes SwiGLU (silu), but config.json asks for {raw['hidden_act']!r}."
            )
        eos = raw.get("eos_token_id")
        eos_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
        try:
            heads = int(raw["num_attention_heads"])
            config = cls(
                vocab_size=int(raw["vocab_size"]),
                hidden_size=int(raw["hidden_size"]),
                intermediate_size=int(raw["intermediate_size"]),
                num_hidden_layers=int(raw["num_hidden_layers"]),
                num_attention_heads=heads,
                num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
                rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-5)),
                tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
                max_position_embeddings=int(raw.get("max_position_embeddings", 2048)),
                bos_token_id=raw.get("bos_token_id"),
                eos_token_ids=eos_ids,
            )
        except KeyError as missing:
            raise ModelConfigError(f"config.json has no {missing}, which the engine needs.") from None
        if raw.get("head_dim") not in (None, config.head_size):
            raise ModelConfigError("config.json has a head_dim other than hidden_size / num_attention_heads.")
        return config

    def to_hf(self) -> dict[str, Any]:
        eos: int | list[int] | None = list(self.eos_token_ids)
        if len(self.eos_token_ids) < 2:
            eos = self.eos_token_ids[0] if self.eos_token_ids else None
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_position_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos,
            "torch_dtype": "float32",
        }


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


class Params(NamedTuple):
    """`embed` and `unembed` are [V, D]; `unembed` is None where it is tied to `embed`."""

    embed: Array
    layers: Layers
    final_norm: Array
    unembed: Array | None


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
        ),
        final_norm=jnp.ones((hidden,)),
        unembed=None if config.tie_word_embeddings else normal(config.vocab_size, hidden),
    )


def unembed_matrix(params: Params) -> Array:
    return params.embed if params.unembed is None else params.unembed


@jax.custom_vjp
def linear(x_N_I: Array, weight_I_O: Array) -> Array:
    """`x @ weight`, with a backward pass that XLA's CPU backend runs without transposing its operands."""
    return x_N_I @ weight_I_O


def _linear_forward(x_N_I: Array, weight_I_O: Array) -> tuple[Array, tuple[Array, Array]]:
    return x_N_I @ weight_I_O, (x_N_I, weight_I_O)


def _linear_backward(kept: tuple[Array, Array], out_N_O: Array) -> tuple[Array, Array]:
    x_N_I, weight_I_O = kept
    return out_N_O @ weight_I_O.T, jax.lax.dot_general(x_N_I, out_N_O, (((0,), (0,)), ((), ())))


linear.defvjp(_linear_forward, _linear_backward)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope_tables(config: LlamaConfig, positions: Array) -> tuple[Array, Array]:
    """Cosine and sine, each `positions.shape + (E,)`."""
    half = config.head_size // 2
    frequency = config.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[..., None].astype(jnp.float32) * frequency
    angle = jnp.concatenate([angle, angle], axis=-1)
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    first, second = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate([-second, first], axis=-1) * sin


def _attend_block(q_B_K_GQ_E: Array, k_B_K_S_E: Array, v_B_K_S_E: Array, start: int, queries: int) -> Array:
    scores = jnp.einsum("bkqe,bkse->bkqs", q_B_K_GQ_E, k_B_K_S_E)
    row = start + jnp.arange(q_B_K_GQ_E.shape[2]) % queries
    causal = jnp.arange(k_B_K_S_E.shape[2])[None, :] <= row[:, None]
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bkqs,bkse->bkqe", weights, v_B_K_S_E)


def causal_attention(q_B_H_T_E: Array, k_B_K_T_E: Array, v_B_K_T_E: Array) -> Array:
    """Grouped-query attention in blocks of queries, each against its own prefix of keys.

    The blocks skip the upper triangle and are recomputed in the backward pass, so that no [T, T] matrix of
    scores outlives its block.
    """
    batch, heads, time, size = q_B_H_T_E.shape
    groups = k_B_K_T_E.shape[1]
    q = q_B_H_T_E.reshape(batch, groups, heads // groups, time, size) * (1.0 / math.sqrt(size))
    attend = _attend_block
    if time > ATTENTION_BLOCK:
        attend = jax.checkpoint(_attend_block, static_argnums=(3, 4))
    blocks = []
    for start in range(0, time, ATTENTION_BLOCK):
        end = min(start + ATTENTION_BLOCK, time)
        block = q[:, :, :, start:end].reshape(batch, groups, -1, size)
        out = attend(block, k_B_K_T_E[:, :, :end], v_B_K_T_E[:, :, :end], start, end - start)
        blocks.append(out.reshape(batch, heads, end - start, size))
    return jnp.concatenate(blocks, axis=2)


def hidden_states(params: Params, config: LlamaConfig, tokens_B_T: Array) -> Array:
    """The normalised last hidden state of every position, [B, T, D]."""
    batch, time = tokens_B_T.shape
    cos, sin = rope_tables(config, jnp.arange(time))

    def heads(x: Array, count: int) -> Array:
        return x.reshape(batch, time, count, config.head_size).transpose(0, 2, 1, 3)

    def block(x: Array, layer: Layers) -> tuple[Array, None]:
        normed = rms_norm(x, layer.attn_norm, config.rms_norm_eps)
        qkv = linear(normed, jnp.concatenate([layer.q, layer.k, layer.v], axis=1))
        q, k, v = jnp.split(qkv, [layer.q.shape[1], layer.q.shape[1] + layer.k.shape[1]], axis=-1)
        q = rotate(heads(q, config.num_attention_heads), cos, sin)
        k = rotate(heads(k, config.num_key_value_heads), cos, sin)
        mixed = causal_attention(q, k, heads(v, config.num_key_value_heads))
        x = x + linear(mixed.transpose(0, 2, 1, 3).reshape(batch * time, -1), layer.o)
        normed = rms_norm(x, layer.mlp_norm, config.rms_norm_eps)
        gate, up = jnp.split(linear(normed, jnp.concatenate([layer.gate, layer.up], axis=1)), 2, axis=-1)
        return x + linear(jax.nn.silu(gate) * up, layer.down), None

    x, _ = jax.lax.scan(block, params.embed[tokens_B_T.reshape(-1)], params.layers)
    return rms_norm(x, params.final_norm, config.rms_norm_eps).reshape(batch, time, -1)


def _rows_logprobs(unembed_V_D: Array, hidden_N_D: Array, targets_N: Array) -> Array:
    logits = hidden_N_D @ unembed_V_D.T
    # A masked sum rather than an index: the backward pass of indexing is a slow scatter.
    target = jnp.arange(logits.shape[1]) == targets_N[:, None]
    chosen = jnp.where(target, logits, 0.0).sum(axis=1)
    return chosen - jax.nn.logsumexp(logits, axis=1)


def token_logprobs(unembed_V_D: Array, hidden_N_D: Array, targets_N: Array) -> Array:
    """log p(target | hidden) a row; the vocabulary is projected in chunks of rows where it is big."""
    rows, vocab = targets_N.shape[0], unembed_V_D.shape[0]
    chunk = rows
    while chunk * vocab > LOGIT_BUDGET and chunk % 2 == 0:
        chunk //= 2
    if chunk == rows:
        return _rows_logprobs(unembed_V_D, hidden_N_D, targets_N)
    project = jax.checkpoint(lambda pair: _rows_logprobs(unembed_V_D, *pair))
    pairs = (hidden_N_D.reshape(-1, chunk, hidden_N_D.shape[1]), targets_N.reshape(-1, chunk))
    out: Array = jax.lax.map(project, pairs)
    return out.reshape(rows)


def target_logprobs(params: Params, config: LlamaConfig, tokens_B_T: Array, targets_B_T: Array) -> Array:
    """log p(targets[b, t] | tokens[b, :t + 1]), [B, T]."""
    hidden = hidden_states(params, config, tokens_B_T)
    flat = token_logprobs(
        unembed_matrix(params), hidden.reshape(-1, hidden.shape[-1]), targets_B_T.reshape(-1)
    )
    return flat.reshape(targets_B_T.shape)
