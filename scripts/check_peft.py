"""Loads exported adapters into transformers with peft and compares logits; writes what peft computed.

Needs torch and peft beside termrl in an environment of its own; run it by hand when the export changes:
    python scripts/check_peft.py tests/engine/goldens
For every architecture it trains nothing: it takes a random adapter on all matrices, exports it, has peft load
the files, and puts peft's logits and the files' digest into peft.npz, which tests/engine/test_exports.py
holds the engine to. Exits 1 where the two disagree by 1e-4 of the largest logit.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from termrl.engine.architecture import LlamaConfig
from termrl.engine.exports import file_bytes, file_names
from termrl.engine.llama import Params, hidden_states, unembed_matrix
from termrl.engine.lora import Lora, LoraSpec, init_lora, merge
from termrl.engine.models import BaseModel
from termrl.engine.weights import load_model

MODELS = ("llama", "llama3", "qwen2", "qwen3")
SPEC = LoraSpec(rank=4, alpha=16.0)


def random_adapter(config: LlamaConfig, params: Params) -> Lora:
    lora = init_lora(config, params, SPEC, seed=5)
    rng = np.random.default_rng(6)
    for pair in lora.values():
        pair["b"] = jnp.asarray(rng.normal(0, 0.1, pair["b"].shape), jnp.float32)
    return lora


def main(place: Path) -> None:
    worst = 0.0
    for name in MODELS:
        config, params = load_model(place / name)
        base = BaseModel(name, place / name, config, params)
        lora = random_adapter(config, params)
        tokens = np.load(place / name / "logits.npz")["tokens"]
        files = {file: file_bytes(file, base, SPEC, lora) for file in file_names(base, SPEC)}
        with tempfile.TemporaryDirectory() as directory:
            for file, content in files.items():
                Path(directory, file).write_bytes(content)
            loaded = AutoModelForCausalLM.from_pretrained(
                place / name, dtype=torch.float32, attn_implementation="eager"
            )
            adapted = PeftModel.from_pretrained(loaded, directory)
        with torch.no_grad():
            theirs = adapted(torch.from_numpy(tokens)[None]).logits[0, -24:].numpy()
            with adapted.disable_adapter():
                plain = adapted(torch.from_numpy(tokens)[None]).logits[0, -24:].numpy()
        whole = merge(params, lora, SPEC.alpha)
        ours = hidden_states(whole, config, jnp.asarray(tokens)[None])[0, -24:] @ unembed_matrix(whole).T
        error = float(np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max())
        moved = float(np.abs(theirs - plain).max() / np.abs(theirs).max())
        print(
            f"{name}: peft and the engine agree to {error:.1e}; the adapter moves the logits by {moved:.1e}"
        )
        worst = max(worst, error)
        digest = hashlib.sha256(b"".join(files.values())).hexdigest()
        np.savez_compressed(place / name / "peft.npz", logits=theirs, digest=digest)
    if worst > 1e-4:
        sys.exit(f"peft and the engine disagree by {worst:.1e} of the largest logit.")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
