"""A loss of one's own in numpy or JAX, without torch: docs/losses.md has a worked example.

A custom loss is called with the logprobs of every lesson's positions and the lessons, and gives the loss
and its gradient in each logprob. By the chain rule cross-entropy weighted with the negative gradients then
has the same gradient in the weights: one forward pass, one weighted pass, on any Tinker server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from termrl.learn.datums import Lesson


@dataclass(frozen=True, slots=True)
class LossGradient:
    """A loss, its gradient in each logprob by lesson, and any figures worth keeping."""

    loss: float
    gradients: Sequence[np.ndarray]
    metrics: dict[str, float] = field(default_factory=dict)


class CustomLoss(Protocol):
    def __call__(self, logprobs: Sequence[np.ndarray], lessons: Sequence[Lesson]) -> LossGradient: ...


def differentiated(function: Callable[..., Any]) -> CustomLoss:
    """A custom loss from a JAX function of (logprobs, lessons) that gives a scalar."""

    def with_gradient(logprobs: Sequence[np.ndarray], lessons: Sequence[Lesson]) -> LossGradient:
        # JAX takes a second to import, which only a loss in JAX should pay.
        import jax

        loss, gradients = jax.value_and_grad(function)(list(logprobs), lessons)
        return LossGradient(float(loss), [np.asarray(gradient) for gradient in gradients])

    return with_gradient


def check_gradient(result: LossGradient, lessons: Sequence[Lesson]) -> None:
    """A gradient that is not one finite number for each position is a mistake in the loss."""
    shapes = [np.shape(gradient) for gradient in result.gradients]
    if shapes != [(lesson.length,) for lesson in lessons]:
        raise ValueError(
            f"the custom loss gave gradients of the shapes {shapes[:3]}..., but the lessons have "
            f"{[lesson.length for lesson in lessons][:3]}... positions"
        )
    if not all(np.isfinite(gradient).all() for gradient in result.gradients):
        raise ValueError("the custom loss gave a gradient that is not finite")
