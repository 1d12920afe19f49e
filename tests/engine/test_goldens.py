"""Logits against those that transformers computed, for every architecture; see scripts/make_goldens.py."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from termrl.engine.llama import hidden_states, unembed_matrix
from termrl.engine.weights import load_model

GOLDENS = Path(__file__).parent / "goldens"


@pytest.mark.parametrize("name", ["llama", "llama3", "qwen2", "qwen3"])
def test_logits_are_those_of_transformers(name: str) -> None:
    config, params = load_model(GOLDENS / name)
    golden = np.load(GOLDENS / name / "logits.npz")
    hidden = hidden_states(params, config, jnp.asarray(golden["tokens"])[None])
    found = np.asarray(hidden[0, -24:] @ unembed_matrix(params).T)
    error = np.abs(found - golden["logits"]).max() / np.abs(golden["logits"]).max()
    assert error < 1e-5
    assert len(list((GOLDENS / name).glob("*.safetensors"))) > 1, "the files are not sharded"
