"""A call whose result comes later: what it is known by, how it is begun, what it answers at once.

`begin` is given the body as it came, now or, after the engine was killed, again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from termrl.engine.fields import Fields
from termrl.engine.futures import Identity, Pending


@dataclass(frozen=True)
class LongCall:
    identify: Callable[[bytes], Identity | None]
    """Reads the body as far as needed; raises what makes the call a 4xx."""
    begin: Callable[[bytes, Pending], None]
    changes_model: bool = False
    """Whether a training client cannot be brought back without doing it again."""
    answer: Callable[[bytes, Pending], dict[str, Any]] = lambda _body, _pending: {}
    """What the acknowledgement says beside the request's id."""


def training_identity(fields: Fields) -> Identity | None:
    """One request of a training client; the SDK numbers them."""
    model_id = fields.text("model_id")
    if fields.raw("seq_id") is None:
        return None
    return Identity(f"train:{model_id}:{fields.integer('seq_id')}", session_of(model_id), model_id)


def session_of(name: str) -> str:
    """The session that a training client or a sampling session belongs to."""
    return name.split(":")[0]
