"""A model as a Hugging Face directory: config.json and safetensors with the standard tensor names.

Stored matrices are [out, in] in float32, float16 or bfloat16, in one file or in shards; in memory they are
[in, out] float32. A file is written beside its place and renamed into it, so that a reader never sees half
of one.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from termrl.engine.architecture import LlamaConfig
from termrl.engine.catalog import ModelFilesError
from termrl.engine.llama import Layers, Params

_MATRICES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def load_model(directory: Path | str) -> tuple[LlamaConfig, Params]:
    directory = Path(directory)
    try:
        config = LlamaConfig.from_hf(json.loads((directory / "config.json").read_text()))
    except FileNotFoundError:
        raise ModelFilesError(f"The model directory {directory} has no config.json.") from None
    except json.JSONDecodeError as error:
        raise ModelFilesError(f"{directory / 'config.json'} is not JSON: {error}.") from None
    tensors = _read_tensors(directory)

    def take(name: str, *shape: int) -> np.ndarray:
        if name not in tensors:
            raise ModelFilesError(f"The weights in {directory} have no tensor {name!r}.")
        found = tensors[name].astype(np.float32)
        if found.shape != shape:
            raise ModelFilesError(
                f"The tensor {name!r} in {directory} has shape {found.shape}, config.json says {shape}."
            )
        return found

    shapes = _matrix_shapes(config)
    depth, hidden = config.num_hidden_layers, config.hidden_size

    def stack(name: str, *shape: int) -> np.ndarray:
        return np.stack([take(f"model.layers.{i}.{name}", *shape) for i in range(depth)])

    layers = {
        field: stack(f"{name}.weight", *reversed(shapes[field])).swapaxes(1, 2)
        for field, name in _MATRICES.items()
    }
    layers |= {field: stack(name, *shape) for field, (name, shape) in _vectors(config).items()}
    unembed = None
    if not config.tie_word_embeddings:
        unembed = jnp.asarray(take("lm_head.weight", config.vocab_size, hidden))
    return config, Params(
        embed=jnp.asarray(take("model.embed_tokens.weight", config.vocab_size, hidden)),
        layers=Layers(**{field: jnp.asarray(value) for field, value in layers.items()}),
        final_norm=jnp.asarray(take("model.norm.weight", hidden)),
        unembed=unembed,
    )


def save_model(directory: Path | str, config: LlamaConfig, params: Params, dtype: str = "float32") -> None:
    """Writes config.json and model.safetensors, stored as `dtype` (float32, float16 or bfloat16)."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    tensors = hf_tensors(config, params)
    stored = {name: np.ascontiguousarray(value.astype(_DTYPES[dtype])) for name, value in tensors.items()}
    beside = directory / "model.safetensors.tmp"
    save_file(stored, beside, metadata={"format": "pt"})
    os.replace(beside, directory / "model.safetensors")
    beside = directory / "config.json.tmp"
    beside.write_text(json.dumps(config.to_hf() | {"torch_dtype": dtype}, indent=2) + "\n")
    os.replace(beside, directory / "config.json")


def hf_tensors(config: LlamaConfig, params: Params) -> dict[str, np.ndarray]:
    """The tensors of a model under their Hugging Face names, matrices [out, in]."""
    tensors = {
        "model.embed_tokens.weight": np.asarray(params.embed),
        "model.norm.weight": np.asarray(params.final_norm),
    }
    if params.unembed is not None:
        tensors["lm_head.weight"] = np.asarray(params.unembed)
    for i in range(config.num_hidden_layers):
        for field, name in _MATRICES.items():
            tensors[f"model.layers.{i}.{name}.weight"] = np.asarray(getattr(params.layers, field)[i]).T
        for field, (name, _) in _vectors(config).items():
            tensors[f"model.layers.{i}.{name}"] = np.asarray(getattr(params.layers, field)[i])
    return tensors


def hf_module(field: str) -> str:
    """The name that Hugging Face gives a matrix inside its layer."""
    return _MATRICES[field]


def _vectors(config: LlamaConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Field -> name and shape of what a layer has beside matrices."""
    hidden, size = (config.hidden_size,), (config.head_size,)
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "attn_norm": ("input_layernorm.weight", hidden),
        "mlp_norm": ("post_attention_layernorm.weight", hidden),
    }
    if config.attention_bias:
        widths = _matrix_shapes(config)
        found |= {f"{name}_bias": (f"self_attn.{name}_proj.bias", widths[name][1:]) for name in "qkv"}
    if config.qk_norm:
        found |= {f"{name}_norm": (f"self_attn.{name}_norm.weight", size) for name in "qk"}
    return found


def _matrix_shapes(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_width = config.num_attention_heads * config.head_size
    kv_width = config.num_key_value_heads * config.head_size
    return {
        "q": (hidden, q_width),
        "k": (hidden, kv_width),
        "v": (hidden, kv_width),
        "o": (q_width, hidden),
        "gate": (hidden, inner),
        "up": (hidden, inner),
        "down": (inner, hidden),
    }


def _read_tensors(directory: Path) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except SafetensorError as error:
            raise ModelFilesError(f"{path} cannot be read as safetensors: {error}.") from None
    if not tensors:
        raise ModelFilesError(f"The model directory {directory} has no *.safetensors file.")
    return tensors
