"""Makes tests/engine/goldens: small random models and the logits that transformers computes for them.

Needs torch and transformers in an environment of its own; run it by hand when an architecture is added:
    python scripts/make_goldens.py tests/engine/goldens
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

COMMON = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**COMMON, tie_word_embeddings=True),
    "llama3": LlamaConfig(**COMMON, tie_word_embeddings=False, rope_parameters=LLAMA3),
    "qwen2": Qwen2Config(**COMMON, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**COMMON, head_dim=16, tie_word_embeddings=False),
}


def main(place: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 97, (1, 150))
    for name, config in MODELS.items():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            for parameter in model.parameters():
                spread = 0.15 if parameter.ndim > 1 else 0.3
                offset = 0.0 if parameter.ndim > 1 else 0.5
                # Rounded to what float16 holds, so that the files are small and nothing is lost in them.
                value = (torch.randn_like(parameter) * spread + offset).half().float()
                parameter.copy_(value)
            logits = model(torch.from_numpy(tokens)).logits[0, -24:].numpy()
        model.half().save_pretrained(place / name, max_shard_size="30KB")
        np.savez_compressed(place / name / "logits.npz", tokens=tokens[0], logits=logits)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
