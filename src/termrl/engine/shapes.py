"""The few shapes in which a model samples, and how much memory they may take.

Every shape is compiled once, so there are few; what is computed takes the smallest that holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from termrl.engine.architecture import LlamaConfig


class Piece(NamedTuple):
    """So many tokens of each of a few prompts, prefilled in one go."""

    width: int
    rows: tuple[int, ...]
    least: int
    """Taken where at least so many tokens are missing and no wider piece is."""


@dataclass(frozen=True)
class Shapes:
    """Sizes, in rising order.

    Where XLA multiplies, in one thread, products of 2 to 63 rows sum in one order and of 64 or more in
    another: a small model's decoding keeps to the first and prefill to the second, so that rows never change
    a result.
    """

    slots: tuple[int, ...]
    prefill_block: int
    """The page in which keys and values of prompts are held. The width of a piece is a number of pages, or it
    is the last of its prompt."""
    pieces: tuple[Piece, ...]
    positions: tuple[int, ...]
    cache_bytes: int
    """Keys and values of the answers under way, rows times positions."""
    prefill_bytes: int
    """Keys and values of what stands before the pieces that are prefilled together."""
    prefix_bytes: int
    """Keys and values of prompts held for later."""
    past_step: int | None = None
    """The positions before a piece come in multiples of this, none among them; else as all positions do."""

    def slot_bucket(self, count: int) -> int:
        return next((size for size in self.slots if count <= size), self.slots[-1])

    def position_bucket(self, positions: int) -> int:
        return next((size for size in self.positions if positions <= size), -(-positions // 512) * 512)

    def rows_that_fit(self, positions: int, config: LlamaConfig) -> int:
        """How many rows of so many positions the cache may have; the smallest number always."""
        row = position_bytes(config) * self.position_bucket(positions)
        return max((size for size in self.slots if size * row <= self.cache_bytes), default=self.slots[0])

    def piece(self, missing: int) -> Piece:
        return next(piece for piece in reversed(self.pieces) if piece.least <= missing)

    def past_bucket(self, positions: int) -> int:
        """For how many positions before it a piece is computed."""
        if self.past_step is None:
            return self.position_bucket(positions)
        return -(-positions // self.past_step) * self.past_step

    def prefill_rows_that_fit(self, rows: tuple[int, ...], past: int, config: LlamaConfig) -> int:
        """How many prompts may be prefilled together after so many positions."""
        row = position_bytes(config) * max(past, 1)
        return max((size for size in rows if size * row <= self.prefill_bytes), default=rows[0])


SMALL = Shapes(
    slots=(8, 32, 63),
    prefill_block=32,
    pieces=(Piece(32, (2, 4, 8), 0),),
    positions=(64, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048),
    cache_bytes=512 << 20,
    prefill_bytes=128 << 20,
    prefix_bytes=128 << 20,
)
"""Attention reads every position of the cache: a small model's step costs little else."""

BIG = Shapes(
    slots=(1, 2, 8, 16, 32, 48, 64),
    prefill_block=64,
    pieces=(Piece(16, (8, 32), 0), Piece(64, (2, 8), 17), Piece(128, (1, 4), 65), Piece(512, (1,), 385)),
    positions=(64, 128, 256, 512, 768, 1024, 1536, 2048),
    cache_bytes=4 << 30,
    prefill_bytes=256 << 20,
    prefix_bytes=2 << 30,
    past_step=512,
)
"""Pieces of 128 to 512 tokens in all: products are then as fast as they get."""


def shapes_of(config: LlamaConfig) -> Shapes:
    return SMALL if config.is_small else BIG


def position_bytes(config: LlamaConfig) -> int:
    """The keys and values of one token, in all layers, as float32."""
    return 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_size
