"""The few shapes in which a model samples, and how much memory they may take.

Every shape is compiled once, so there are few; what is computed takes the smallest that holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from termrl.engine.architecture import LlamaConfig


@dataclass(frozen=True)
class Shapes:
    """Matrix products of 2 to 63 rows sum in one order and of 64 or more in another; decoding keeps to the
    first and prefill to the second, so that the number of rows never changes a result.
    """

    slots: tuple[int, ...]
    prefill_rows: tuple[int, ...]
    prefill_block: int
    positions: tuple[int, ...]
    cache_bytes: int
    """Keys and values of the answers under way, rows times positions."""
    prefix_bytes: int
    """Keys and values of prompts held for later."""

    def slot_bucket(self, count: int) -> int:
        return next((size for size in self.slots if count <= size), self.slots[-1])

    def position_bucket(self, positions: int) -> int:
        return next((size for size in self.positions if positions <= size), -(-positions // 1024) * 1024)

    def rows_that_fit(self, positions: int, config: LlamaConfig) -> int:
        """How many rows of so many positions the cache may have; the smallest number always."""
        row = position_bytes(config) * self.position_bucket(positions)
        return max((size for size in self.slots if size * row <= self.cache_bytes), default=self.slots[0])

    def prefill_rows_that_fit(self, past: int, config: LlamaConfig) -> int:
        """How many prompts may be prefilled together after so many positions, in a quarter of the cache."""
        row = position_bytes(config) * max(past, 1)
        fitting = (size for size in self.prefill_rows if 4 * size * row <= self.cache_bytes)
        return max(fitting, default=self.prefill_rows[0])


SMALL = Shapes(
    slots=(8, 32, 63),
    prefill_rows=(2, 4, 8),
    prefill_block=32,
    positions=(64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048),
    cache_bytes=512 << 20,
    prefix_bytes=128 << 20,
)
"""Attention reads every position of the cache: a small model's step costs little else."""

BIG = Shapes(
    slots=(2, 8, 16, 32, 48, 63),
    prefill_rows=(1, 2, 4, 8),
    prefill_block=64,
    positions=(128, 256, 512, 1024, 1536, 2048),
    cache_bytes=4 << 30,
    prefix_bytes=2 << 30,
)


def shapes_of(config: LlamaConfig) -> Shapes:
    return SMALL if config.is_small else BIG


def position_bytes(config: LlamaConfig) -> int:
    """The keys and values of one token, in all layers, as float32."""
    return 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_size
