"""What is trained of a model, kept apart from its base weights: a LoRA adapter, or every weight.

An adapter holds a pair (a [in, r], b [r, out]) for every adapted matrix, stacked over layers; the update is
`a @ b * alpha / r`. Rank 0 means full fine-tuning: a {"w"} for every tensor, which takes the base's place.
Sampling merges what was trained into the weights. Training does so too for small models, where that costs
less than two thin products a token, and for whole weights; a big model's adapter is trained beside its frozen
weights, which saves a third of the work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from termrl.engine.architecture import LlamaConfig
from termrl.engine.llama import Layers, Params, unembed_matrix

DEFAULT_ALPHA = 32.0
ATTENTION = ("q", "k", "v", "o")
MLP = ("gate", "up", "down")

Lora = dict[str, dict[str, Array]]
"""Tensor name -> {"a", "b"}, or {"w"} where the whole tensor is trained."""


@dataclass(frozen=True)
class LoraSpec:
    rank: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True
    alpha: float = DEFAULT_ALPHA

    @property
    def is_lora(self) -> bool:
        return self.rank > 0

    @property
    def matrices(self) -> tuple[str, ...]:
        names: tuple[str, ...] = ()
        names += ATTENTION if self.train_attn else ()
        names += MLP if self.train_mlp else ()
        return names + (("unembed",) if self.train_unembed else ())


def init_lora(config: LlamaConfig, params: Params, spec: LoraSpec, seed: int) -> Lora:
    """`a` uniform within 1/sqrt(in), `b` zero: a fresh adapter changes nothing, nor do whole weights."""
    if not spec.is_lora:
        return whole_weights(params)
    rng = np.random.default_rng(seed)
    hidden, inner = config.hidden_size, config.intermediate_size
    q_width = config.num_attention_heads * config.head_size
    kv_width = config.num_key_value_heads * config.head_size
    depth = (config.num_hidden_layers,)
    shapes = {
        "q": (depth, hidden, q_width),
        "k": (depth, hidden, kv_width),
        "v": (depth, hidden, kv_width),
        "o": (depth, q_width, hidden),
        "gate": (depth, hidden, inner),
        "up": (depth, hidden, inner),
        "down": (depth, inner, hidden),
        "unembed": ((), hidden, config.vocab_size),
    }
    lora: Lora = {}
    for name in spec.matrices:
        stack, rows, columns = shapes[name]
        bound = 1.0 / math.sqrt(rows)
        a = rng.uniform(-bound, bound, (*stack, rows, spec.rank)).astype(np.float32)
        lora[name] = {"a": jnp.asarray(a), "b": jnp.zeros((*stack, spec.rank, columns))}
    return lora


def merges_first(config: LlamaConfig, lora: Lora) -> bool:
    """Whether training computes with merged weights."""
    return config.is_small or any("w" in pair for pair in lora.values())


def scaled(lora: Lora, alpha: float | Array) -> Lora:
    """The adapter with its scale in `a`."""
    return {
        name: {"a": pair["a"] * (alpha / pair["a"].shape[-1]), "b": pair["b"]} for name, pair in lora.items()
    }


def whole_weights(params: Params) -> Lora:
    """Every tensor of a model, by name."""
    tensors = {"embed": params.embed, "final_norm": params.final_norm, "unembed": params.unembed}
    tensors |= params.layers._asdict()
    return {name: {"w": value.astype(jnp.float32)} for name, value in tensors.items() if value is not None}


def merge(params: Params, lora: Lora, alpha: float | Array = DEFAULT_ALPHA) -> Params:
    """The weights with what was trained. An unembedding tied to the embedding is untied by its update."""
    changed: dict[str, Array] = {}
    for name, pair in lora.items():
        if "w" in pair:
            changed[name] = pair["w"]
            continue
        update = pair["a"] @ pair["b"] * (alpha / pair["a"].shape[-1])
        if name == "unembed":
            old, update = unembed_matrix(params), update.T
        else:
            old = getattr(params.layers, name)
        changed[name] = (old + update).astype(old.dtype)
    layers = {name: value for name, value in changed.items() if name in Layers._fields}
    others = {name: value for name, value in changed.items() if name not in Layers._fields}
    return params._replace(layers=params.layers._replace(**layers), **others)
