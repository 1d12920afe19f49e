"""Keys and values of prompt prefixes already computed with one snapshot, in pages of a fixed block of tokens.

A block is found by all tokens up to its end, so prompts that share a head share its blocks, and a prompt
that extends an earlier one pays for the new part alone. The least recently used blocks go first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from termrl.engine.architecture import LlamaConfig
from termrl.engine.buffers import Room, copy_by_layer
from termrl.engine.decoding import Block, Cache


class PrefixStore:
    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self.held_bytes = 0
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()

    def get(self, key: bytes) -> Block | None:
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def put(self, key: bytes, block: Block) -> None:
        if key in self._blocks:
            return
        self._blocks[key] = block
        self.held_bytes += block.keys.nbytes + block.values.nbytes
        while self.held_bytes > self._budget and len(self._blocks) > 1:
            _, old = self._blocks.popitem(last=False)
            self.held_bytes -= old.keys.nbytes + old.values.nbytes


def block_keys(tokens: np.ndarray, block: int) -> list[bytes]:
    """The key of every block of a prompt, the last of which may be short."""
    raw = np.ascontiguousarray(tokens, np.int32).tobytes()
    digest = hashlib.blake2b(digest_size=16)
    keys = []
    width = block * 4
    for start in range(0, len(raw), width):
        digest.update(raw[start : start + width])
        keys.append(digest.digest())
    return keys


def joined(config: LlamaConfig, positions: int, rows: Sequence[Sequence[Block]], room: Room) -> Block:
    """The blocks of each row one after the other, zeros behind them."""
    past = Block(*room.take(_shapes(config, positions, len(rows))))

    def copy(layers: slice) -> None:
        for number, blocks in enumerate(rows):
            row = Block(past.keys[layers, number], past.values[layers, number])
            end = fill(row, [Block(block.keys[layers], block.values[layers]) for block in blocks])
            row.keys[..., end:] = 0
            row.values[..., end:, :] = 0

    copy_by_layer(copy, config.num_hidden_layers, past.keys.nbytes + past.values.nbytes)
    return past


def _shapes(config: LlamaConfig, positions: int, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    lead = (config.num_hidden_layers, rows, config.num_key_value_heads)
    return (*lead, config.head_size, positions), (*lead, positions, config.head_size)


def by_layer(block: Block) -> Cache:
    """The same memory, a layer at a time: a program would copy every layer out of the whole."""
    return Cache(tuple(block.keys), tuple(block.values))


def row_of(block: Block, row: int) -> Block:
    return Block(block.keys[:, row], block.values[:, row])


def pages_of(block: Block, row: int, tokens: int, page: int) -> list[Block]:
    """What was computed for one row, cut into pages of its own tokens."""
    spans = (slice(start, min(start + page, tokens)) for start in range(0, tokens, page))
    return [
        Block(block.keys[:, row, ..., span].copy(), block.values[:, row, :, span].copy()) for span in spans
    ]


def fill(past: Block, blocks: Sequence[Block]) -> int:
    """Lays blocks one after the other into the positions of one row; returns where they end."""
    end = 0
    for block in blocks:
        start, end = end, end + block.keys.shape[-1]
        past.keys[..., start:end] = block.keys
        past.values[..., start:end, :] = block.values
    return end
