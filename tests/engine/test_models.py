"""Models of every kind of file, and what changes for bigger ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGUFWriter
from transformers import AutoTokenizer

from termrl.engine.architecture import LlamaConfig, ModelConfigError
from termrl.engine.catalog import ModelFilesError, check_model
from termrl.engine.gguf_files import GgufError, convert_gguf
from termrl.engine.llama import Params, init_params, target_logprobs
from termrl.engine.lora import LoraSpec
from termrl.engine.models import BaseModel, load_base_model
from termrl.engine.rows import Datum
from termrl.engine.sampler import Sampler
from termrl.engine.sequences import Answer, SamplingSettings
from termrl.engine.shapes import BIG
from termrl.engine.trainer import PassResult, Trainer
from termrl.engine.weights import hf_tensors, load_model

CONFIG = LlamaConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    bos_token_id=0,
    eos_token_ids=(1,),
)
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def lively_params(config: LlamaConfig = CONFIG) -> Params:
    """Random weights big enough for the tokens' probabilities to differ."""
    return jax.tree.map(lambda x: x * 8.0 if x.ndim > 1 else x, init_params(config, 0))


def train(trainer: Trainer, data: list[Datum]) -> PassResult:
    run = trainer.run(data, "ppo", {}, backward=True)
    while True:
        try:
            next(run)
        except StopIteration as end:
            result: PassResult = end.value
            return result


def write_gguf(file: Path, config: LlamaConfig, params: Params, architecture: str = "llama") -> None:
    """As llama.cpp's converter does: q and k permuted for its rotary layout."""
    writer = GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    words = ["<bos>", "<eos>", *"ab", "ab", *(chr(0x4E00 + i) for i in range(config.vocab_size - 5))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3, 3] + [1] * (len(words) - 2))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages }}")
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for name, value in hf_tensors(config, params).items():
        stem = name.removesuffix(".weight")
        if stem in top:
            writer.add_tensor(f"{top[stem]}.weight", np.ascontiguousarray(value))
            continue
        _, _, number, rest = stem.split(".", 3)
        if rest in ("self_attn.q_proj", "self_attn.k_proj"):
            rows, columns = value.shape
            halves = value.reshape(rows // config.head_size, 2, config.head_size // 2, columns)
            value = halves.swapaxes(1, 2).reshape(rows, columns)
        writer.add_tensor(f"blk.{number}.{GGUF_NAMES[rest]}.weight", np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_becomes_the_model_it_was_made_from(tmp_path: Path) -> None:
    params = lively_params()
    write_gguf(tmp_path / "model.gguf", CONFIG, params)
    convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    config, loaded = load_model(tmp_path / "out")
    assert config == dataclasses.replace(CONFIG, rms_norm_eps=config.rms_norm_eps)
    assert config.rms_norm_eps == pytest.approx(CONFIG.rms_norm_eps)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.encode("ab<eos>a") == [4, 1, 2]
    assert tokenizer.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-such-model", "no model 'no-such-model'"),
        ("/no/such/file.gguf", "no GGUF file"),
        ("a/b/c", "no model 'a/b/c'"),
    ],
)
def test_a_name_that_can_be_no_model_is_refused_without_a_network(name: str, said: str) -> None:
    with pytest.raises(ModelFilesError, match=said):
        check_model(name)


def test_a_file_that_is_no_gguf_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"nothing of the kind" * 10)
    with pytest.raises(GgufError, match="cannot be read as GGUF"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "out")


def test_an_architecture_the_engine_has_not_got_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", CONFIG, lively_params(), architecture="gemma")
    with pytest.raises(ModelConfigError, match="'gemma'"):
        convert_gguf(tmp_path / "model.gguf", tmp_path / "out")


def test_matrices_in_bfloat16_give_nearly_the_same_logprobs(base: BaseModel) -> None:
    half = load_base_model(base.name, "bfloat16")
    assert half.params.layers.q.dtype == jnp.bfloat16
    assert half.params.layers.attn_norm.dtype == jnp.float32
    tokens = np.random.default_rng(0).integers(0, 97, (1, 64))
    calm = [jax.tree.map(lambda x: x / 4 if x.ndim > 1 else x, model.params) for model in (base, half)]
    found = [
        target_logprobs(params, base.config, jnp.asarray(tokens), jnp.asarray(tokens)) for params in calm
    ]
    np.testing.assert_allclose(found[0], found[1], atol=0.05)


@pytest.fixture
def big(base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> BaseModel:
    """The small model, computed as big ones are; another config, so that nothing compiled is reused."""
    monkeypatch.setattr("termrl.engine.architecture.SMALL_PARAMETERS", 0)
    config = dataclasses.replace(base.config, bos_token_id=2)
    calm = jax.tree.map(lambda x: x / 4 if x.ndim > 1 else x, base.params)
    return dataclasses.replace(base, config=config, params=calm)


def test_an_adapter_beside_frozen_weights_has_the_gradients_of_a_merged_one(
    base: BaseModel, big: BaseModel
) -> None:
    rng = np.random.default_rng(0)
    data = [
        Datum(
            tokens=rng.integers(0, 97, n),
            targets=rng.integers(0, 97, n),
            weights=rng.normal(size=n).astype(np.float32),
            sampled=rng.uniform(-5, -3, n).astype(np.float32),
        )
        for n in (40, 64, 9, 200)
    ]
    beside = Trainer(big, LoraSpec(4), 0)
    for pair in beside.lora.values():
        pair["b"] = jnp.asarray(np.random.default_rng(1).normal(0, 0.02, pair["b"].shape), jnp.float32)
    found = train(beside, data)
    merged = Trainer(dataclasses.replace(big, config=base.config), LoraSpec(4), 0)
    merged.load(beside.lora, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("termrl.engine.architecture.SMALL_PARAMETERS", 10**9)
        expected = train(merged, data)
    for one, other in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * float(jnp.abs(b).max())),
        beside._gradients,
        merged._gradients,
    )


def test_a_big_models_samples_have_the_logprobs_of_the_training_forward(big: BaseModel) -> None:
    sampler = Sampler(big, big.params)
    assert sampler._shapes == BIG
    prompt = np.random.default_rng(0).integers(2, 97, 150).astype(np.int32)
    answers: list[Answer] = []
    settings = SamplingSettings(max_tokens=20, seed=7, stops_at_eos=False)
    for _ in range(2):
        sampler.sample(prompt, settings, 0, answers.append)
        while sampler.busy:
            sampler.step()
    first, second = answers
    assert first.tokens == second.tokens
    assert (first.cached_tokens, second.cached_tokens) == (0, 149)
    whole = np.concatenate([prompt, first.tokens])[None]
    found = target_logprobs(big.params, big.config, jnp.asarray(whole), jnp.roll(jnp.asarray(whole), -1, 1))
    np.testing.assert_allclose(first.logprobs, found[0, 149:-1], atol=1e-4)
    np.testing.assert_allclose(second.logprobs, found[0, 149:-1], atol=1e-4)


def test_a_missing_tensor_is_named(tmp_path: Path, model_dir: Path) -> None:
    for file in model_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"model_type": "qwen3"}))
    with pytest.raises(ModelFilesError, match=r"no tensor 'model.layers.0.self_attn.q_norm.weight'"):
        load_model(tmp_path)
