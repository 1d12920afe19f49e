from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from termrl.engine import attention
from termrl.engine.architecture import LlamaConfig, ModelConfigError
from termrl.engine.attention import causal_attention
from termrl.engine.llama import Params, init_params, target_logprobs
from termrl.engine.weights import ModelFilesError, load_model, save_model

CONFIG = LlamaConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    eos_token_ids=(1, 2),
)


def lively_params(config: LlamaConfig = CONFIG) -> Params:
    """Random weights big enough for the tokens' probabilities to differ."""
    return jax.tree.map(lambda x: x * 8.0 if x.ndim > 1 else x, init_params(config, 0))


def reference_logprobs(params: Params, config: LlamaConfig, tokens: np.ndarray) -> np.ndarray:
    """log p of every next token of one sequence, in float64 and one head at a time."""

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * weight

    size = config.head_size
    angle = np.arange(len(tokens))[:, None] * config.rope_theta ** (-np.arange(0, size, 2) / size)

    def rotate(x: np.ndarray) -> np.ndarray:
        a, b = x[:, : size // 2], x[:, size // 2 :]
        return np.concatenate(
            [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1
        )

    x = np.asarray(params.embed, np.float64)[tokens]
    for i in range(config.num_hidden_layers):
        named = params.layers._asdict().items()
        layer = {name: np.asarray(value[i], np.float64) for name, value in named if value is not None}
        h = norm(x, layer["attn_norm"])
        heads = []
        for head in range(config.num_attention_heads):
            group = head * config.num_key_value_heads // config.num_attention_heads
            own, shared = slice(head * size, (head + 1) * size), slice(group * size, (group + 1) * size)
            q, k = rotate(h @ layer["q"][:, own]), rotate(h @ layer["k"][:, shared])
            scores = q @ k.T / np.sqrt(size)
            scores[np.triu_indices(len(tokens), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            heads.append(weights / weights.sum(-1, keepdims=True) @ (h @ layer["v"][:, shared]))
        x = x + np.concatenate(heads, 1) @ layer["o"]
        h = norm(x, layer["mlp_norm"])
        gate = h @ layer["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["up"])) @ layer["down"]
    unembed = params.embed if params.unembed is None else params.unembed
    logits = norm(x, np.asarray(params.final_norm)) @ np.asarray(unembed, np.float64).T
    top = logits.max(-1, keepdims=True)
    logprobs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return logprobs[np.arange(len(tokens) - 1), tokens[1:]]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("computed_by", ["our own", "xla"])
def test_attention_and_its_gradients_agree_with_autodiff_of_a_plain_one(
    packed: bool, computed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if computed_by == "xla":
        monkeypatch.setattr(attention, "has_attention", lambda _: False)
    batch, heads, groups, time, size = 2, 4, 2, 300, 8
    rng = np.random.default_rng(0)
    q, into = (jnp.asarray(rng.standard_normal((batch, heads, time, size), np.float32)) for _ in "qi")
    k, v = (jnp.asarray(rng.standard_normal((batch, groups, time, size), np.float32)) for _ in "kv")
    first = np.array([[0, 70, 200], [0, 128, 299]])  # where the sequences of each row start
    at = np.arange(time)
    start = np.stack([row[np.searchsorted(row, at, side="right") - 1] for row in first])

    def plain(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        k, v = (jnp.repeat(x, heads // groups, axis=1) for x in (k, v))
        scores = jnp.einsum("bhqe,bhse->bhqs", q, k) / np.sqrt(size)
        seen = (at <= at[:, None]) & (at >= start[:, None, :, None] if packed else True)
        return jnp.einsum("bhqs,bhse->bhqe", jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)), v)

    def ours(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return causal_attention(q, k, v, jnp.asarray(start) if packed else None)

    found, backward = jax.vjp(ours, q, k, v)
    expected, plain_backward = jax.vjp(plain, q, k, v)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for gradient, plain_gradient in zip(backward(into), plain_backward(into), strict=True):
        np.testing.assert_allclose(gradient, plain_gradient, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_the_forward_pass_agrees_with_a_plain_one_across_attention_blocks(tied: bool) -> None:
    config = dataclasses.replace(CONFIG, tie_word_embeddings=tied)
    params = lively_params(config)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 200)
    padded = np.zeros((2, 256), np.int32)
    padded[0, :200] = tokens
    found = target_logprobs(params, config, jnp.asarray(padded), jnp.roll(jnp.asarray(padded), -1, axis=1))
    np.testing.assert_allclose(found[0, :199], reference_logprobs(params, config, tokens), atol=2e-4)


@pytest.mark.parametrize(("dtype", "error"), [("float32", 0.0), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_a_model_comes_back_from_its_directory(tmp_path: Path, dtype: str, error: float) -> None:
    params = lively_params()
    save_model(tmp_path, CONFIG, params, dtype)
    config, loaded = load_model(tmp_path)
    assert config == CONFIG
    np.testing.assert_allclose(loaded.embed, params.embed, atol=error, rtol=error)
    np.testing.assert_allclose(loaded.layers.down, params.layers.down, atol=error, rtol=error)
    assert loaded.unembed is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba"}, "type llama, qwen2, qwen3, not 'mamba'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rotary scaling"),
        ({"attention_bias": True}, "biases"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"head_dim": None, "hidden_size": 33}, "4 heads in a hidden size of 33"),
        ({"use_sliding_window": True}, "sliding"),
    ],
)
def test_a_model_that_would_be_computed_wrongly_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ModelConfigError, match=said):
        LlamaConfig.from_hf(CONFIG.to_hf() | change)


def test_weights_that_do_not_fit_the_config_are_named(tmp_path: Path) -> None:
    save_model(tmp_path, CONFIG, lively_params())
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"vocab_size": 98}))
    with pytest.raises(ModelFilesError, match="embed_tokens"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ModelFilesError, match="safetensors"):
        load_model(tmp_path)
