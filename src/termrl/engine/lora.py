"""LoRA: low-rank updates of a model's matrices, kept apart from the weights they change.

An adapter holds a pair (a [in, r], b [r, out]) for every adapted matrix, stacked over layers; the update is
`a @ b * ALPHA / r`. Every computation merges the adapter into the weights first, training too: for the small
models this engine is for, that costs less than two thin products a token, and training and sampling then
compute with the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from termrl.engine.llama import LlamaConfig, Params, unembed_matrix

ALPHA = 32.0
ATTENTION = ("q", "k", "v", "o")
MLP = ("gate", "up", "down")

Lora = dict[str, dict[str, Array]]
"""Matrix name -> {"a", "b"}."""


@dataclass(frozen=True)
class LoraSpec:
    rank: int
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    @property
    def matrices(self) -> tuple[str, ...]:
        names: tuple[str, ...] = ()
        names += ATTENTION if self.train_attn else ()
        names += MLP if self.train_mlp else ()
        return names + (("unembed",) if self.train_unembed else ())


def init_lora(config: LlamaConfig, spec: LoraSpec, seed: int) -> Lora:
    """`a` uniform within 1/sqrt(in), `b` zero: a fresh adapter changes nothing."""
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


def merge(params: Params, lora: Lora) -> Params:
    """The weights with the adapter added. An unembedding tied to the embedding is untied by its update."""
    layers = params.layers
    unembed = params.unembed
    for name, pair in lora.items():
        update = pair["a"] @ pair["b"] * (ALPHA / pair["a"].shape[-1])
        if name == "unembed":
            unembed = unembed_matrix(params) + update.T
        else:
            layers = layers._replace(**{name: getattr(layers, name) + update})
    return params._replace(layers=layers, unembed=unembed)
