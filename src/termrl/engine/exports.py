"""Weights in the forms that other programs read: a PEFT adapter, or a whole Hugging Face model.

A LoRA adapter becomes adapter_config.json and adapter_model.safetensors, which transformers with peft, vLLM
and llama.cpp's converter take. Weights that were trained whole become config.json and model.safetensors.
"""

from __future__ import annotations

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save

from termrl.engine.lora import Lora, LoraSpec, merge
from termrl.engine.models import BaseModel
from termrl.engine.weights import hf_module, hf_tensors

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
MODEL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def file_names(base: BaseModel, spec: LoraSpec) -> tuple[str, ...]:
    if spec.is_lora:
        return ADAPTER_FILES
    return tuple(
        name for name in MODEL_FILES if not name.startswith("token") or (base.directory / name).exists()
    )


def file_bytes(name: str, base: BaseModel, spec: LoraSpec, lora: Lora) -> bytes:
    """The content of one of `file_names`."""
    if name == "adapter_config.json":
        return _json(_adapter_config(base, spec, lora))
    if name == "adapter_model.safetensors":
        return save(_adapter_tensors(lora), {"format": "pt"})
    if name == "config.json":
        return _json(base.config.to_hf())
    if name == "model.safetensors":
        tensors = hf_tensors(base.config, merge(base.params, lora, spec.alpha))
        whole = {key: np.ascontiguousarray(value, np.float32) for key, value in tensors.items()}
        return save(whole, {"format": "pt"})
    return (base.directory / name).read_bytes()


def _adapter_config(base: BaseModel, spec: LoraSpec, lora: Lora) -> dict[str, Any]:
    targets = ["lm_head" if name == "unembed" else hf_module(name).split(".")[-1] for name in lora]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
        "use_rslora": False,
    }


def _adapter_tensors(lora: Lora) -> dict[str, np.ndarray]:
    """PEFT's names; A is [r, in] and B is [out, r]."""
    tensors: dict[str, np.ndarray] = {}

    def add(module: str, a: Any, b: Any) -> None:
        tensors[f"base_model.model.{module}.lora_A.weight"] = np.ascontiguousarray(np.asarray(a).T)
        tensors[f"base_model.model.{module}.lora_B.weight"] = np.ascontiguousarray(np.asarray(b).T)

    for name, pair in lora.items():
        if name == "unembed":
            add("lm_head", pair["a"], pair["b"])
            continue
        for i in range(jnp.shape(pair["a"])[0]):
            add(f"model.layers.{i}.{hf_module(name)}", pair["a"][i], pair["b"][i])
    return tensors


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
