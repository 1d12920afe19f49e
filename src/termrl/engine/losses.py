"""The loss functions, as Tinker defines them: sums over tokens, never means.

With r = exp(logp - sampled logp), advantage A and sg[] stopping gradients, a token costs: cross_entropy
-logp·weight; importance_sampling -r·A; ppo -min(r·A, clip(r)·A); cispo -sg[clip(r)]·logp·A; dro
-(logp·A - beta/2·(logp - sampled)²); gspo is ppo with the sequence's geometric mean ratio in place of r, and
each token's own gradient. stable_reinforce has no published formula: here it is -logp·A plus kl_coeff times
r - 1 - log r, an estimate of the divergence from the sampler. A token without weight or advantage costs
nothing. Settings come from `loss_fn_config`; one that a loss does not have is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from termrl.errors import UserError

_CLIP_NAMES = ("clip_low_threshold", "clip_high_threshold")


class LossError(UserError):
    """A loss, its settings or its inputs are not what the engine computes."""


@dataclass(frozen=True)
class Loss:
    index: int
    inputs: tuple[str, ...]
    """The tensors every datum must bring besides target_tokens."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Settings with their defaults. Clip thresholds may also come as tensors, one value a token."""
    takes_mask: bool = False

    @property
    def by_token(self) -> bool:
        """Whether a token's cost depends on no other token's logprob."""
        return not self.takes_mask


def _clipped(index: int, low: float, high: float, *, takes_mask: bool = False) -> Loss:
    return Loss(
        index, ("logprobs", "advantages"), dict(zip(_CLIP_NAMES, (low, high), strict=True)), takes_mask
    )


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(0, ("weights",)),
    "importance_sampling": Loss(1, ("logprobs", "advantages")),
    "ppo": _clipped(2, 0.8, 1.2),
    "cispo": _clipped(3, 0.0, 4.0),
    "dro": Loss(4, ("logprobs", "advantages"), {"beta": 0.05}),
    "gspo": _clipped(5, 0.8, 1.2, takes_mask=True),
    "stable_reinforce": Loss(6, ("logprobs", "advantages"), {"kl_coeff": 0.01}),
}


class LossSettings(NamedTuple):
    low: float = 0.0
    high: float = float("inf")
    coefficient: float = 0.0
    """dro's beta, stable_reinforce's kl_coeff."""


class TokenInputs(NamedTuple):
    """What the losses read beside the model's logprobs, each [B, T]."""

    weights: Array
    """cross_entropy's weights, or the advantages."""
    sampled: Array
    low: Array
    high: Array
    mask: Array
    """The tokens whose ratios make up gspo's sequence ratio."""
    start: Array
    """Where in its row a token's sequence starts."""


def find_loss(name: str) -> Loss:
    if name == "custom":
        raise LossError(
            "This engine runs custom losses in the client: call forward_backward_custom with a function."
        )
    if name not in LOSSES:
        raise LossError(f"This engine has no loss {name!r}; it has {', '.join(LOSSES)}.")
    return LOSSES[name]


def read_settings(name: str, settings: Mapping[str, float | str]) -> LossSettings:
    """The settings of loss_fn_config; what it leaves out has the loss's default."""
    known = find_loss(name).settings
    for key, value in settings.items():
        if key not in known:
            allowed = f"it takes {', '.join(known)}" if known else "it takes none"
            raise LossError(f"The loss {name!r} has no setting {key!r}; {allowed}.")
        if not isinstance(value, int | float) or value != value:
            raise LossError(f"The setting {key!r} of the loss {name!r} must be a number, not {value!r}.")
    found = {key: float(settings.get(key, default)) for key, default in known.items()}
    if _CLIP_NAMES[0] in found:
        low, high = (found[key] for key in _CLIP_NAMES)
        if not 0 <= low <= high:
            raise LossError(
                f"The clip range of the loss {name!r} must have 0 <= low <= high, not {low}, {high}."
            )
        return LossSettings(low, high)
    coefficient = next(iter(found.values()), 0.0)
    if not 0 <= coefficient < float("inf"):
        raise LossError(
            f"The setting {next(iter(found))!r} of the loss {name!r} must be 0 or more, not {coefficient}."
        )
    return LossSettings(coefficient=coefficient)


def token_loss(index: Array, logprobs: Array, inputs: TokenInputs, coefficient: Array) -> Array:
    """The cost of every token, [B, T]."""
    weights, sampled, low, high, mask, start = inputs
    idle = weights == 0
    # Masked before the exponential too: an overflow there would make the gradient of a masked token NaN.
    gap = jnp.where(idle, 0.0, logprobs - sampled)

    def clipped(ratio: Array) -> Array:
        return -jnp.minimum(ratio * weights, jnp.clip(ratio, low, high) * weights)

    def cross_entropy() -> Array:
        return -logprobs * weights

    def importance_sampling() -> Array:
        return -jnp.exp(gap) * weights

    def ppo() -> Array:
        return clipped(jnp.exp(gap))

    def cispo() -> Array:
        ratio = jax.lax.stop_gradient(jnp.clip(jnp.exp(gap), low, high))
        return -ratio * logprobs * weights

    def dro() -> Array:
        return -(logprobs * weights - 0.5 * coefficient * gap * gap)

    def gspo() -> Array:
        inside = mask != 0
        total = _sequence_sum(jnp.where(inside, logprobs - sampled, 0.0), start)
        mean = total / jnp.maximum(_sequence_sum(inside.astype(jnp.float32), start), 1)
        own = logprobs - jax.lax.stop_gradient(logprobs)
        return clipped(jnp.exp(jnp.where(idle, 0.0, jax.lax.stop_gradient(mean) + own)))

    def stable_reinforce() -> Array:
        return -logprobs * weights + coefficient * (jnp.exp(gap) - 1.0 - gap)

    branches = (cross_entropy, importance_sampling, ppo, cispo, dro, gspo, stable_reinforce)
    cost: Array = jax.lax.switch(index, branches)
    return cost


def _sequence_sum(value_B_T: Array, start_B_T: Array) -> Array:
    """For every token the sum over its own sequence."""

    def row(value_T: Array, start_T: Array) -> Array:
        sums = jnp.zeros_like(value_T).at[start_T].add(value_T)
        found: Array = sums[start_T]
        return found

    return jax.vmap(row)(jax.lax.stop_gradient(value_B_T), start_B_T)
