"""A GGUF file made into a Hugging Face directory: weights dequantised, tokenizer and chat template beside.

Done once and kept: dequantising takes seconds, and the SDK opens tokenizers from a directory. llama.cpp
stores Llama's q and k with their rows permuted for another rotary layout; they are put back in order.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from termrl.engine.architecture import LlamaConfig, ModelConfigError, RopeScaling
from termrl.errors import UserError

_LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_CONTROL, _USER_DEFINED = 3, 4
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_WORDS = _QWEN_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


class GgufError(UserError):
    """A GGUF file cannot be read or holds what the engine cannot use."""


def convert_gguf(file: Path, directory: Path) -> None:
    """Writes config.json, model.safetensors and the tokenizer's files; all of them or none."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise GgufError(f"{file} cannot be read as GGUF: {error}.") from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _read_config(file, fields, {tensor.name for tensor in reader.tensors})
    tokenizer, settings = _read_tokenizer(file, fields)
    tensors = _read_tensors(file, reader, config)
    beside = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    save_file(tensors, beside / "model.safetensors", metadata={"format": "pt"})
    (beside / "config.json").write_text(json.dumps(config.to_hf(), indent=2) + "\n")
    tokenizer.save(str(beside / "tokenizer.json"))
    (beside / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    try:
        os.replace(beside, directory)
    except OSError:
        # Another process has just put the same files there.
        shutil.rmtree(beside)
        if not directory.is_dir():
            raise


def _read_config(file: Path, fields: Mapping[str, Any], tensors: set[str]) -> LlamaConfig:
    kind = str(fields.get("general.architecture"))

    def read(name: str) -> Any:
        if f"{kind}.{name}" not in fields:
            raise GgufError(f"{file} has no {kind}.{name}, which the engine needs.")
        return fields[f"{kind}.{name}"]

    if kind not in ("llama", "qwen2", "qwen3"):
        raise ModelConfigError(f"The engine runs models of type llama, qwen2, qwen3, but {file} is {kind!r}.")
    if any(name.startswith("blk.0.ffn_gate_exps") for name in tensors):
        raise ModelConfigError(f"{file} is a mixture of experts; the engine runs dense models.")
    heads, hidden = int(read("attention.head_count")), int(read("embedding_length"))
    head_dim = int(fields.get(f"{kind}.attention.key_length", hidden // heads))
    eos = fields.get("tokenizer.ggml.eos_token_id")
    bos = fields.get("tokenizer.ggml.bos_token_id")
    return LlamaConfig(
        vocab_size=len(fields.get("tokenizer.ggml.tokens", [])),
        hidden_size=hidden,
        intermediate_size=int(read("feed_forward_length")),
        num_hidden_layers=int(read("block_count")),
        num_attention_heads=heads,
        num_key_value_heads=int(fields.get(f"{kind}.attention.head_count_kv", heads)),
        rope_theta=float(fields.get(f"{kind}.rope.freq_base", 10000.0)),
        rms_norm_eps=float(read("attention.layer_norm_rms_epsilon")),
        tie_word_embeddings="output.weight" not in tensors,
        max_position_embeddings=int(read("context_length")),
        bos_token_id=None if bos is None else int(bos),
        eos_token_ids=() if eos is None else (int(eos),),
        architecture=kind,
        head_dim=None if head_dim * heads == hidden else head_dim,
        rope_scaling=_read_scaling(file, kind, fields, tensors),
    )


def _read_scaling(file: Path, kind: str, fields: Mapping[str, Any], tensors: set[str]) -> RopeScaling | None:
    scaling = fields.get(f"{kind}.rope.scaling.type", "none")
    if scaling not in ("none", "", None):
        raise ModelConfigError(f"The engine has no rotary scaling {scaling!r}, but {file} asks for it.")
    if "rope_freqs.weight" not in tensors:
        return None
    # llama.cpp stores Llama 3's factors worked out; they are the same for every such model.
    small = fields.get("general.size_label") in ("1B", "3B")
    return RopeScaling(32.0 if small else 8.0, 1.0, 4.0, 8192)


def _read_tensors(file: Path, reader: Any, config: LlamaConfig) -> dict[str, np.ndarray]:
    from gguf import dequantize

    tensors: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        name = _NAMES.get(tensor.name)
        if name is None and tensor.name.startswith("blk."):
            _, number, rest = tensor.name.split(".", 2)
            if rest not in _LAYER_NAMES:
                raise GgufError(f"{file} has a tensor {tensor.name!r} that the engine would have to ignore.")
            name = f"model.layers.{number}.{_LAYER_NAMES[rest]}"
        if name is None:
            if tensor.name == "rope_freqs.weight":
                continue
            raise GgufError(f"{file} has a tensor {tensor.name!r} that the engine would have to ignore.")
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if config.architecture == "llama" and name.endswith((".q_proj.weight", ".k_proj.weight")):
            values = _unpermute(values, config.head_size)
        tensors[name] = values
    return tensors


def _unpermute(weight: np.ndarray, head_size: int) -> np.ndarray:
    """Rows of every head from pairs (0, 1), (2, 3), … back to halves, as Hugging Face has them."""
    rows, columns = weight.shape
    pairs = weight.reshape(rows // head_size, head_size // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _read_tokenizer(file: Path, fields: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    kind, words = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or words not in _WORDS:
        raise GgufError(
            f"{file} has a tokenizer {kind!r} ({words!r}); the engine reads 'gpt2' with one of "
            f"{', '.join(_WORDS)} from GGUF. Use the model's Hugging Face directory instead."
        )
    tokens: list[str] = list(fields["tokenizer.ggml.tokens"])
    types = list(fields.get("tokenizer.ggml.token_type", [1] * len(tokens)))
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = _WORDS[words]()
    tokenizer.decoder = decoders.ByteLevel()
    for token, type_ in zip(tokens, types, strict=True):
        if type_ in (_CONTROL, _USER_DEFINED):
            tokenizer.add_tokens([AddedToken(token, special=type_ == _CONTROL, normalized=False)])
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        number = fields.get(f"tokenizer.ggml.{key}_token_id")
        if number is not None:
            settings[f"{name}_token"] = tokens[int(number)]
    template = fields.get("tokenizer.chat_template")
    if template:
        settings["chat_template"] = template
    return tokenizer, settings


def _split_words(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _smollm_words() -> Any:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


_WORDS: dict[str, Callable[[], Any]] = {
    "default": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": _smollm_words,
    "qwen2": lambda: _split_words(_QWEN_WORDS),
    "llama-bpe": lambda: _split_words(_LLAMA3_WORDS),
}
