"""What a model looks like: its sizes and the few ways in which Llama, Qwen2 and Qwen3 differ.

Read from a Hugging Face config.json. What this engine would compute wrongly is refused by name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from termrl.errors import UserError

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


SMALL_PARAMETERS = 16_000_000
"""Up to this size a model is computed in one thread, with what is trained merged into its weights."""


class ModelConfigError(UserError):
    """A config.json describes a model this engine cannot compute."""


@dataclass(frozen=True)
class RopeScaling:
    """Llama 3's stretching of the rotary frequencies to longer contexts."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int

    def apply(self, frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        if wavelength < self.original_positions / self.high_freq_factor:
            return frequency
        if wavelength > self.original_positions / self.low_freq_factor:
            return frequency / self.factor
        smooth = self.original_positions / wavelength - self.low_freq_factor
        smooth /= self.high_freq_factor - self.low_freq_factor
        return (1 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True)
class LlamaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 2048
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    architecture: str = "llama"
    head_dim: int | None = None
    """The size of a head where it is not hidden_size / num_attention_heads."""
    rope_scaling: RopeScaling | None = None

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def attention_bias(self) -> bool:
        return self.architecture == "qwen2"

    @property
    def qk_norm(self) -> bool:
        return self.architecture == "qwen3"

    @property
    def parameters(self) -> int:
        """The parameters that a token's matrix products go through; a tied embedding counts once."""
        width = (2 * self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_size
        layer = self.hidden_size * (width + 3 * self.intermediate_size)
        return self.num_hidden_layers * layer + self.vocab_size * self.hidden_size

    @property
    def is_small(self) -> bool:
        return self.parameters <= SMALL_PARAMETERS

    def rope_frequencies(self) -> list[float]:
        half = self.head_size // 2
        plain = [self.rope_theta ** (-i / half) for i in range(half)]
        return plain if self.rope_scaling is None else [self.rope_scaling.apply(f) for f in plain]

    @classmethod
    def from_hf(cls, raw: dict[str, Any]) -> LlamaConfig:
        """Reads the fields of a Hugging Face config.json; refuses what would be computed wrongly."""
        kind = raw.get("model_type", "llama")
        if kind not in ARCHITECTURES:
            raise ModelConfigError(
                f"The engine runs models of type {', '.join(ARCHITECTURES)}, not {kind!r}; "
                "choose another model."
            )
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        biased = bool(raw.get("attention_bias", False)) and kind != "qwen2"
        if biased or raw.get("mlp_bias"):
            raise ModelConfigError(
                f"The engine has no such biases for the type {kind!r}, but config.json asks for them."
            )
        if raw.get("use_sliding_window"):
            raise ModelConfigError("The engine has no sliding-window attention, but config.json asks for it.")
        if raw.get("hidden_act", "silu") != "silu":
            raise ModelConfigError(
                f"The engine computes SwiGLU (silu), but config.json asks for {raw['hidden_act']!r}."
            )
        eos = raw.get("eos_token_id")
        try:
            heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
            head_dim = raw.get("head_dim")
            if head_dim is None and hidden % heads:
                raise ModelConfigError(f"config.json has {heads} heads in a hidden size of {hidden}.")
            return cls(
                vocab_size=int(raw["vocab_size"]),
                hidden_size=hidden,
                intermediate_size=int(raw["intermediate_size"]),
                num_hidden_layers=int(raw["num_hidden_layers"]),
                num_attention_heads=heads,
                num_key_value_heads=int(raw.get("num_key_value_heads") or heads),
                rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
                rms_norm_eps=float(raw.get("rms_norm_eps", 1e-5 if kind == "llama" else 1e-6)),
                tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
                max_position_embeddings=int(raw.get("max_position_embeddings", 2048)),
                bos_token_id=raw.get("bos_token_id"),
                eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
                architecture=kind,
                head_dim=None if head_dim is None or head_dim * heads == hidden else int(head_dim),
                rope_scaling=_read_scaling(rope),
            )
        except KeyError as missing:
            raise ModelConfigError(f"config.json has no {missing}, which the engine needs.") from None

    def to_hf(self) -> dict[str, Any]:
        eos: int | list[int] | None = list(self.eos_token_ids)
        if len(self.eos_token_ids) < 2:
            eos = self.eos_token_ids[0] if self.eos_token_ids else None
        raw = {
            "architectures": [ARCHITECTURES[self.architecture]],
            "model_type": self.architecture,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "attention_bias": self.attention_bias,
            "mlp_bias": False,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_position_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos,
            "torch_dtype": "float32",
        }
        if self.rope_scaling is not None:
            raw["rope_scaling"] = {
                "rope_type": "llama3",
                "factor": self.rope_scaling.factor,
                "low_freq_factor": self.rope_scaling.low_freq_factor,
                "high_freq_factor": self.rope_scaling.high_freq_factor,
                "original_max_position_embeddings": self.rope_scaling.original_positions,
            }
        return raw


def _read_scaling(rope: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelConfigError(
            f"The engine has the rotary scaling 'llama3' only, but config.json asks for {rope}; "
            "choose another model."
        )
    return RopeScaling(
        float(rope["factor"]),
        float(rope["low_freq_factor"]),
        float(rope["high_freq_factor"]),
        int(rope["original_max_position_embeddings"]),
    )
