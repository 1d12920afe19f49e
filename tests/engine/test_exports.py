"""What peft computed with an exported adapter, against the engine; see scripts/check_peft.py."""

from __future__ import annotations

import hashlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from termrl.engine.exports import file_bytes, file_names
from termrl.engine.llama import hidden_states, unembed_matrix
from termrl.engine.lora import LoraSpec, init_lora, merge
from termrl.engine.models import BaseModel
from termrl.engine.weights import load_model

GOLDENS = Path(__file__).parent / "goldens"
SPEC = LoraSpec(rank=4, alpha=16.0)


@pytest.mark.parametrize("name", ["llama", "llama3", "qwen2", "qwen3"])
def test_an_exported_adapter_gives_peft_the_engines_logits(name: str) -> None:
    config, params = load_model(GOLDENS / name)
    base = BaseModel(name, GOLDENS / name, config, params)
    golden = np.load(GOLDENS / name / "peft.npz")
    lora = init_lora(config, params, SPEC, seed=5)
    rng = np.random.default_rng(6)
    for pair in lora.values():
        pair["b"] = jnp.asarray(rng.normal(0, 0.1, pair["b"].shape), jnp.float32)
    files = b"".join(file_bytes(file, base, SPEC, lora) for file in file_names(base, SPEC))
    assert hashlib.sha256(files).hexdigest() == str(golden["digest"]), "these are not the files peft loaded"
    whole = merge(params, lora, SPEC.alpha)
    tokens = jnp.asarray(np.load(GOLDENS / name / "logits.npz")["tokens"])[None]
    found = np.asarray(hidden_states(whole, config, tokens)[0, -24:] @ unembed_matrix(whole).T)
    assert np.abs(found - golden["logits"]).max() / np.abs(golden["logits"]).max() < 1e-4
