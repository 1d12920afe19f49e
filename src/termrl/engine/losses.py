"""The loss functions, as Tinker defines them: sums over tokens, never means.

With r = exp(logp - sampled logp) and advantage A, a token costs: cross_entropy -logp·weight;
importance_sampling -r·A; ppo -min(r·A, clip(r, low, high)·A). A token without weight or advantage costs
nothing. Settings come from `loss_fn_config`; one that a loss does not have is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from termrl.errors import UserError


class LossError(UserError):
    """A loss, its settings or its inputs are not what the engine computes."""


@dataclass(frozen=True)
class Loss:
    index: int
    inputs: tuple[str, ...]
    """The tensors every datum must bring besides target_tokens."""
    settings: Mapping[str, float]
    """Settings with their defaults."""


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(0, ("weights",), {}),
    "importance_sampling": Loss(1, ("logprobs", "advantages"), {}),
    "ppo": Loss(2, ("logprobs", "advantages"), {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
}


def find_loss(name: str) -> Loss:
    if name not in LOSSES:
        raise LossError(f"This engine has no loss {name!r}; it has {', '.join(LOSSES)}.")
    return LOSSES[name]


def clip_range(name: str, settings: Mapping[str, float | str]) -> tuple[float, float]:
    """The ratio's clip range from loss_fn_config, (0, inf) for losses that do not clip."""
    known = find_loss(name).settings
    for key, value in settings.items():
        if key not in known:
            allowed = f"it takes {', '.join(known)}" if known else "it takes none"
            raise LossError(f"The loss {name!r} has no setting {key!r}; {allowed}.")
        if not isinstance(value, int | float):
            raise LossError(f"The setting {key!r} of the loss {name!r} must be a number, not {value!r}.")
    if not known:
        return 0.0, float("inf")
    low, high = (float(settings.get(key, default)) for key, default in known.items())
    if not 0 <= low <= high:
        raise LossError(f"The clip range of the loss {name!r} must have 0 <= low <= high, not {low}, {high}.")
    return low, high


def token_loss(
    index: Array, logprobs: Array, weights: Array, sampled: Array, low: Array, high: Array
) -> Array:
    """The cost of every token; `weights` are the weights of cross_entropy or the advantages."""

    # Masked before the exponential too: an overflow there would make the gradient of a masked token NaN.
    gap = jnp.where(weights == 0, 0.0, logprobs - sampled)

    def cross_entropy() -> Array:
        return -logprobs * weights

    def importance_sampling() -> Array:
        return -jnp.exp(gap) * weights

    def ppo() -> Array:
        ratio = jnp.exp(gap)
        return -jnp.minimum(ratio * weights, jnp.clip(ratio, low, high) * weights)

    cost: Array = jax.lax.switch(index, (cross_entropy, importance_sampling, ppo))
    return cost
