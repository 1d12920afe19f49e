"""What a client asks for, read from JSON with everything checked that needs no model to check."""

from __future__ import annotations

import math
import secrets
from typing import Any

from termrl.engine.adam import AdamSettings
from termrl.engine.decoding import MAX_STOP_IDS
from termrl.engine.lora import LoraSpec
from termrl.engine.sampler import SamplingSettings
from termrl.engine.wire import Fields, MalformedRequest
from termrl.errors import UserError

MAX_SAMPLES = 1024
NO_LIMIT = 1 << 30
# Room for the model's own end-of-sequence ids beside the caller's.
STOP_IDS = MAX_STOP_IDS - 4


class Unsupported(UserError):
    """The protocol has this, this engine does not."""


def read_lora(fields: Fields) -> tuple[LoraSpec, int]:
    """The adapter's shape and its seed; without a seed, a random one."""
    if fields.raw("lora_config") is None:
        raise Unsupported("This engine trains LoRA adapters only; create the model with a lora_config.")
    optimizer = fields.object("optimizer_config").optional_text("type") or "adamw"
    if optimizer != "adamw":
        raise Unsupported(f"This engine has the optimizer 'adamw', not {optimizer!r}.")
    lora = fields.object("lora_config")
    spec = LoraSpec(
        rank=lora.integer("rank"),
        train_attn=lora.flag("train_attn", True),
        train_mlp=lora.flag("train_mlp", True),
        train_unembed=lora.flag("train_unembed", True),
    )
    if not spec.matrices:
        raise UserError("A training client must train at least one of attention, MLP and unembedding.")
    seed = secrets.randbits(63) if lora.raw("seed") is None else lora.integer("seed")
    return spec, seed % 2**63


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


def refuse_unsupported(fields: Fields) -> None:
    """Parts of a sample request that this engine would have to ignore."""
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        if fields.integer(name, 0) != 0:
            raise Unsupported(f"This engine does not compute {name}.")
    if fields.raw("target_prompt_logprobs") is not None:
        raise Unsupported("This engine does not compute target_prompt_logprobs.")
    if fields.flag("record_stability_info"):
        raise Unsupported("This engine records no stability information.")


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
