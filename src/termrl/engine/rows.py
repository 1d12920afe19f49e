"""Data to train on, and the padded rows in which a batch of them is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from termrl.engine.batches import Batch
from termrl.engine.losses import LossSettings, TokenInputs


@dataclass(frozen=True)
class Datum:
    """One sequence to train on, with a value a token in every column.

    `weights` are cross_entropy's weights or the advantages, `sampled` the sampler's logprobs, `low` and
    `high` a token's own clip range, `mask` the tokens of gspo's ratio. cross_entropy may have several targets
    a token: `targets` and `weights` are then [T, K].
    """

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    sampled: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    mask: np.ndarray | None = None


class Rows(NamedTuple):
    """A batch laid out and how it is scored. Padding has weight 0: it adds nothing to loss or gradient."""

    tokens: Any
    targets: Any
    inputs: TokenInputs
    loss: Any
    coefficient: Any


def blank_rows(height: int, length: int, wide: tuple[int, ...], loss: int, settings: LossSettings) -> Rows:
    """`wide` is the shape of what a token has several of: its targets and their weights."""

    def column(dtype: type, fill: float = 0, shape: tuple[int, ...] = ()) -> Any:
        return np.full((height, length, *shape), fill, dtype)

    inputs = TokenInputs(
        weights=column(np.float32, shape=wide),
        sampled=column(np.float32),
        low=column(np.float32, settings.low),
        high=column(np.float32, settings.high),
        mask=column(np.float32),
        # Padding is a sequence of one.
        start=_writable(np.broadcast_to(np.arange(length, dtype=np.int32), (height, length))),
    )
    tokens, targets = column(np.int32), column(np.int32, shape=wide)
    return Rows(tokens, targets, inputs, np.int32(loss), np.float32(settings.coefficient))


def lay_out(data: Sequence[Datum], batch: Batch, loss: int, settings: LossSettings) -> Rows:
    wide = data[batch.places[0].member].targets.shape[1:]
    rows = blank_rows(batch.height, batch.length, wide, loss, settings)
    inputs = rows.inputs
    for member, row, start in (dataclasses.astuple(place) for place in batch.places):
        datum = data[member]
        span = row, slice(start, start + len(datum.tokens))
        rows.tokens[span] = datum.tokens
        rows.targets[span] = datum.targets
        inputs.weights[span] = datum.weights
        inputs.sampled[span] = datum.sampled
        inputs.start[span] = start
        if datum.low is not None:
            inputs.low[span] = datum.low
        if datum.high is not None:
            inputs.high[span] = datum.high
        if not wide:
            inputs.mask[span] = datum.weights != 0 if datum.mask is None else datum.mask
    return rows


def widen(data: Sequence[Datum]) -> list[Datum]:
    """The same data with as many targets a token everywhere; a target of weight 0 adds nothing."""
    widest = max(datum.targets.shape[1] if datum.targets.ndim == 2 else 1 for datum in data)
    width = 1 << (widest - 1).bit_length()

    def wider(column: np.ndarray) -> np.ndarray:
        flat = column.reshape(len(column), -1)
        return np.pad(flat, ((0, 0), (0, width - flat.shape[1])))

    return [
        dataclasses.replace(datum, targets=wider(datum.targets), weights=wider(datum.weights))
        for datum in data
    ]


def _writable(array: np.ndarray) -> Any:
    return array.copy()
