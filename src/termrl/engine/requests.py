"""What a client asks for, read from JSON with everything checked that needs no model to check."""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np

from termrl.engine.adam import AdamSettings
from termrl.engine.choosing import MAX_STOP_IDS
from termrl.engine.fields import Fields, MalformedRequest
from termrl.engine.lora import DEFAULT_ALPHA, LoraSpec
from termrl.engine.scoring import Extras
from termrl.engine.sequences import SamplingSettings
from termrl.errors import UserError

MAX_SAMPLES = 1024
MAX_PER_POSITION = 256
TEN_YEARS = 10 * 366 * 86400
NO_LIMIT = 1 << 30
# Room for the model's own end-of-sequence ids beside the caller's.
STOP_IDS = MAX_STOP_IDS - 4


class Unsupported(UserError):
    """The protocol has this, this engine does not."""


def read_lora(fields: Fields, fallback_seed: int) -> tuple[LoraSpec, int]:
    """The adapter's shape and its seed.

    Without a lora_config, or with rank 0, every weight is trained. The SDK has no word for LoRA's alpha: it
    is taken from the user metadata `lora_alpha`.
    """
    optimizer = fields.object("optimizer_config").optional_text("type") or "adamw"
    if optimizer != "adamw":
        raise Unsupported(f"This engine has the optimizer 'adamw', not {optimizer!r}.")
    lora = fields.object("lora_config")
    spec = LoraSpec(
        rank=lora.integer("rank", 0),
        alpha=_read_alpha(fields.object("user_metadata").raw("lora_alpha")),
        train_attn=lora.flag("train_attn", True),
        train_mlp=lora.flag("train_mlp", True),
        train_unembed=lora.flag("train_unembed", True),
    )
    if spec.is_lora and not spec.matrices:
        raise UserError("A training client must train at least one of attention, MLP and unembedding.")
    seed = fallback_seed if lora.raw("seed") is None else lora.integer("seed")
    return spec, seed % 2**63


def _read_alpha(raw: Any) -> float:
    if raw is None:
        return DEFAULT_ALPHA
    try:
        alpha = float(raw)
    except (TypeError, ValueError):
        alpha = math.nan
    if not 0 < alpha < math.inf:
        raise UserError(f"The user metadata lora_alpha must be a number above 0, not {raw!r}.")
    return alpha


def read_adam(fields: Fields) -> AdamSettings:
    if fields.raw("optimizer_params") is not None:
        raise Unsupported("This engine steps with AdamParams only.")
    if fields.raw("adam_params") is None:
        raise MalformedRequest("The field 'adam_params' is missing.")
    params = fields.object("adam_params")
    defaults = AdamSettings()
    settings = AdamSettings(*(params.number(name, getattr(defaults, name)) for name in AdamSettings._fields))
    if not all(math.isfinite(value) and value >= 0 for value in settings):
        raise UserError(f"Every Adam setting must be finite and not negative, not {settings}.")
    if settings.beta1 >= 1 or settings.beta2 >= 1:
        raise UserError(f"Adam's betas must be below 1, not {settings.beta1} and {settings.beta2}.")
    return settings


def read_sampling(fields: Fields) -> SamplingSettings:
    params = fields.object("sampling_params")
    max_tokens = NO_LIMIT if params.raw("max_tokens") is None else params.integer("max_tokens")
    temperature, top_p = params.number("temperature", 1.0), params.number("top_p", 1.0)
    if max_tokens < 1:
        raise UserError(f"max_tokens must be at least 1, not {max_tokens}.")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"temperature must be 0 or more, not {temperature}.")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p must be above 0 and at most 1, not {top_p}.")
    stop = params.raw("stop")
    ids, strings = _read_stop(stop)
    return SamplingSettings(
        max_tokens=max_tokens,
        seed=secrets.randbits(63) if params.raw("seed") is None else params.integer("seed"),
        temperature=temperature,
        top_k=params.integer("top_k", -1),
        top_p=top_p,
        stop_ids=ids,
        stop_strings=strings,
        stops_at_eos=stop != [],
    )


def read_ttl(fields: Fields) -> int | None:
    if fields.raw("ttl_seconds") is None:
        return None
    seconds = fields.integer("ttl_seconds")
    if not 0 < seconds <= TEN_YEARS:
        raise UserError(f"ttl_seconds must be between 1 and ten years, not {seconds}.")
    return seconds


def read_external(fields: Fields) -> None:
    if fields.raw("age_encryption_recipients"):
        raise Unsupported(
            "This engine does not encrypt exported weights; leave out age_encryption_recipients."
        )


def read_extras(fields: Fields, prompt_length: int) -> Extras:
    """What is asked about the prompt's positions and about the sampled ones."""
    counts = {}
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        counts[name] = fields.integer(name, 0)
        if not 0 <= counts[name] <= MAX_PER_POSITION:
            raise UserError(f"{name} must be between 0 and {MAX_PER_POSITION}, not {counts[name]}.")
    targets, sparse = None, None
    if fields.raw("target_prompt_logprobs") is not None:
        targets, sparse = _read_targets(fields.object("target_prompt_logprobs"), prompt_length - 1)
    return Extras(
        topk_prompt=counts["topk_prompt_logprobs"],
        topk_sample=counts["topk_sample_logprobs"],
        targets=targets,
        sparse=sparse,
        draws=counts["prompt_alt_tokens_k"],
    )


def _read_targets(tensor: Fields, rows: int) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
    shape = tensor.integers("shape")
    values = np.asarray(tensor.integers("data"), np.int64)
    if len(shape) != 2 or shape[0] != rows or not 1 <= shape[1] <= MAX_PER_POSITION:
        raise UserError(
            f"target_prompt_logprobs must have shape [{rows}, K] with K at most {MAX_PER_POSITION}, "
            f"not {shape}."
        )
    if (values < -1).any() or (values >= 2**31).any():
        raise UserError("target_prompt_logprobs must hold token ids, or -1 for none.")
    if tensor.raw("sparse_crow_indices") is None:
        if values.size != shape[0] * shape[1]:
            raise UserError(f"target_prompt_logprobs has {values.size} values for the shape {shape}.")
        return values.reshape(shape), None
    ends = np.asarray(tensor.integers("sparse_crow_indices"), np.int64)
    columns = np.asarray(tensor.integers("sparse_col_indices"), np.int64)
    counts = np.diff(ends)
    fits = len(ends) == rows + 1 and len(columns) == len(values) and ends[0] == 0 and ends[-1] == len(values)
    if not fits or (counts < 0).any() or (columns < 0).any() or (columns >= shape[1]).any():
        raise UserError("target_prompt_logprobs is a sparse tensor whose rows do not fit its shape.")
    dense = np.full(shape, -1, np.int64)
    dense[np.repeat(np.arange(rows), counts), columns] = values
    return dense, (ends, columns)


def refuse_unsupported(fields: Fields) -> None:
    """Parts of a sample request that this engine would have to ignore."""
    for name in ("base_model", "model_path"):
        if fields.raw(name) is not None:
            raise Unsupported(f"This engine samples from sampling sessions; leave out {name}.")


def _read_stop(stop: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list):
        raise MalformedRequest("The field 'stop' must be a string, a list of strings or a list of ids.")
    ids = tuple(item for item in stops if type(item) is int)
    strings = tuple(item for item in stops if isinstance(item, str))
    if len(ids) + len(strings) != len(stops) or "" in strings:
        raise MalformedRequest("The field 'stop' must hold token ids or strings that are not empty.")
    if len(ids) > STOP_IDS:
        raise Unsupported(f"This engine takes at most {STOP_IDS} stop ids, not {len(ids)}.")
    return ids, strings
