"""Which renderer a model's name asks for.

Names that `renderers` knows are looked up there. Sizes and variants of a family that it does not list are
found by the pattern of their name; whether the family's renderer really fits such a model is then checked
against the model's own chat template (`rendering.fits_template`).
"""

import re

_PATTERNS = (
    (r"qwen3\.8", "qwen3.8"),
    (r"qwen3\.6", "qwen3.6"),
    (r"qwen3\.5", "qwen3.5"),
    (r"qwen3-vl", "qwen3-vl"),
    (r"qwen3(?![.\d])", "qwen3"),
    (r"kimi-k2\.[5-9]", "kimi-k2.5"),
    (r"kimi-k2(?![.\d])", "kimi-k2"),
    (r"gpt-oss", "gpt-oss"),
    (r"deepseek-v4", "deepseek-v4"),
    (r"deepseek-r1", "deepseek-r1"),
    (r"deepseek-v3", "deepseek-v3"),
    (r"llama-3", "llama-3"),
    (r"glm-5\.3", "glm-5.3"),
    (r"glm-5\.1", "glm-5.1"),
    (r"glm-(5|4\.7)", "glm-5"),
    (r"glm-4\.5", "glm-4.5"),
    (r"nemotron-3\.5", "nemotron-3.5"),
    (r"nemotron-3-ultra", "nemotron-3-ultra"),
    (r"nemotron-3", "nemotron-3"),
    (r"minimax-m2", "minimax-m2"),
    (r"gemma-4", "gemma4"),
    (r"inkling", "inkling"),
    (r"hy3(?!-preview)", "hy3"),
    (r"laguna-xs-2\.1", "laguna-xs-2.1"),
    (r"laguna-s-2\.1", "laguna-s-2.1"),
    (r"laguna-m\.1", "laguna-m.1"),
    (r"laguna-xs\.2", "laguna-xs.2"),
)


def known_renderer(model_name: str) -> str | None:
    """The renderer that `renderers` lists for exactly this model."""
    from renderers.base import MODEL_RENDERER_MAP

    return MODEL_RENDERER_MAP.get(model_name)


def likely_renderer(model_name: str) -> str | None:
    """The renderer of the family that the model's name speaks of."""
    name = model_name.rstrip("/").rpartition("/")[2].lower()
    return next((renderer for pattern, renderer in _PATTERNS if re.search(pattern, name)), None)


def renderer_names() -> list[str]:
    """Every renderer that can be asked for by name."""
    from renderers import base

    base._populate_registry()  # type: ignore[no-untyped-call]
    return sorted({"chatml", *base.RENDERER_REGISTRY})
