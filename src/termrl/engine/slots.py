"""The answers under way: rows of one key/value cache that moves between a few compiled shapes.

The cache is dense, rows times positions, and never takes more than the shapes' `cache_bytes`: who does not
fit waits, and where answers outgrow it the youngest are set back, to be prefilled again later. A shape that
is not compiled yet is compiled beside the work, which goes on in the next bigger one that is, or waits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence as Several
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from termrl.engine.buffers import Room, aligned_zeros, copy_by_layer, memory_of
from termrl.engine.choosing import MAX_STOP_IDS, Choice
from termrl.engine.compilation import sampling_options
from termrl.engine.decoding import (
    DECODE_CHUNK,
    Block,
    Cache,
    SamplerWeights,
    decode_chunk,
    load_row,
    make_cache,
)
from termrl.engine.models import BaseModel
from termrl.engine.prefixes import fill, joined, row_of
from termrl.engine.programs import Key
from termrl.engine.sequences import Sequence
from termrl.engine.shapes import Shapes, position_bytes


class _Shape(NamedTuple):
    rows: int
    positions: int

    @property
    def size(self) -> int:
        return self.rows * self.positions


class Slots:
    def __init__(self, base: BaseModel, weights: SamplerWeights, shapes: Shapes) -> None:
        self._base = base
        self._weights = weights
        self._shapes = shapes
        self._rows: list[Sequence | None] = []
        self._positions = 0
        self._cache: Cache | None = None
        self._writes_in_place = base.mesh is None and jax.default_backend() == "cpu"
        self.awaited: Key | None = None
        """The key of the program that it last asked for and that was not there."""

    @property
    def active(self) -> list[Sequence]:
        return [sequence for sequence in self._rows if sequence is not None]

    @property
    def room(self) -> int:
        return self._shapes.slots[-1] - len(self.active)

    @property
    def cache_bytes(self) -> int:
        return len(self._rows) * self._positions * position_bytes(self._base.config)

    def drop_unwanted(self) -> None:
        self._rows = [row if row is not None and row.is_wanted() else None for row in self._rows]

    def clear(self) -> None:
        self._rows, self._positions, self._cache = [], 0, None

    def admit(self, ready: Several[Sequence]) -> list[Sequence]:
        """Takes in those that find a place now, in their order."""
        active = self.active
        taken = self._that_fit_memory(active, ready)
        if taken and not self._fit([*active, *taken]):
            taken = self._that_fit_compiled(active, taken)
        for sequence in taken:
            row = self._rows.index(None)
            self._load(row, sequence.blocks)
            sequence.blocks = []
            self._rows[row] = sequence
        return taken

    def _load(self, row: int, blocks: list[Block]) -> None:
        assert self._cache is not None
        if not self._writes_in_place and not isinstance(self._cache.keys[0], np.ndarray):
            prompt = row_of(joined(self._base.config, self._positions, [blocks], Room()), 0)
            self._cache = load_row(self._cache, np.int32(row), prompt)
            return
        memory = self._memory(self._cache)
        count = len(memory.keys)

        def copy(layers: slice) -> None:
            for n in range(*layers.indices(count)):
                ours = Block(memory.keys[n][row], memory.values[n][row])
                end = fill(ours, [Block(block.keys[n], block.values[n]) for block in blocks])
                # What an earlier row left is not seen, but infinity times nothing is felt.
                ours.values[:, end:] = 0

        copy_by_layer(copy, count, sum(block.keys.nbytes + block.values.nbytes for block in blocks))

    def _memory(self, cache: Cache) -> Cache:
        """The cache as numpy's, to be read; to be written where it is in place, or not computed with yet."""
        view = memory_of if self._writes_in_place else np.asarray
        return Cache(tuple(map(view, cache.keys)), tuple(map(view, cache.values)))

    def decode(self) -> list[Sequence] | None:
        """One chunk for every row; returns those that ended. None where it has to wait for a program."""
        if not self._fit(self.active):
            return None
        token, position, choice = self._inputs()
        decoded, self._cache = self._program()(
            self._weights, self._cache, token, position, choice, np.int32(DECODE_CHUNK)
        )
        tokens, logprobs = np.asarray(decoded.tokens_B_C).tolist(), np.asarray(decoded.logprobs_B_C).tolist()
        counts, stopped = np.asarray(decoded.count_B).tolist(), np.asarray(decoded.stopped_B).tolist()
        ended = []
        for row, sequence in enumerate(self._rows):
            if sequence is None:
                continue
            size = counts[row]
            if sequence.take(tokens[row][:size], logprobs[row][:size], stopped[row], self._base.tokenizer):
                self._rows[row] = None
                ended.append(sequence)
        return ended

    def set_back(self) -> list[Sequence]:
        """Takes the youngest out until the next chunk of the others fits into the cache's bytes."""
        active, out = self.active, []
        while len(active) > 1 and len(active) > self._shapes.rows_that_fit(_need(active), self._base.config):
            youngest = min(active, key=lambda sequence: len(sequence.answer.tokens))
            active.remove(youngest)
            self._rows[self._rows.index(youngest)] = None
            youngest.set_back(self._shapes.prefill_block)
            out.append(youngest)
        return out

    def _that_fit_memory(self, active: list[Sequence], ready: Several[Sequence]) -> list[Sequence]:
        taken: list[Sequence] = []
        for sequence in ready:
            together = [*active, *taken, sequence]
            limit = self._shapes.rows_that_fit(_need(together), self._base.config)
            if len(together) > 1 and len(together) > limit:
                break
            taken.append(sequence)
        return taken

    def _that_fit_compiled(self, active: list[Sequence], ready: list[Sequence]) -> list[Sequence]:
        """As many as a shape holds that is compiled already."""
        for rows in reversed(self._shapes.slots):
            taken = ready[: max(0, rows - len(active))]
            if taken and len(taken) < len(ready) and self._fit([*active, *taken], begin=False):
                return taken
        return []

    def _fit(self, sequences: list[Sequence], *, begin: bool = True) -> bool:
        """Gives the cache the shape these sequences need now, if it is too small or far too big."""
        count, need, shapes = len(sequences), _need(sequences), self._shapes
        now = _Shape(len(self._rows), self._positions)
        enough = self._cache is not None and count <= now.rows and need <= now.positions
        # A margin, so that a number that goes up and down around a bucket's edge does not copy every time.
        too_many = shapes.slot_bucket(count * 4 // 3) < now.rows
        too_long = shapes.position_bucket(need + 64) < now.positions
        if enough and not too_many and not too_long:
            return True
        found = self._best_shape(count, need, begin=begin)
        if found is None or (enough and found.size >= now.size):
            return enough
        self._move(found)
        return True

    def _best_shape(self, count: int, need: int, *, begin: bool) -> _Shape | None:
        """The shape for so many rows, or while that is being compiled the smallest that is and holds them."""
        ideal = _Shape(self._shapes.slot_bucket(count), self._shapes.position_bucket(need))
        programs, config = self._base.programs, self._base.config
        key = ("decode", config, ideal)
        if programs.is_ready(key):
            return ideal
        if begin:
            self.awaited = begin_decoding(self._base, self._weights, *ideal)
        limit = max(self._shapes.cache_bytes // position_bytes(config), ideal.size)
        usable = [
            shape
            for kind, of, shape in programs.ready("decode")
            if of == config and shape.rows >= count and shape.positions >= need and shape.size <= limit
        ]
        return min(usable, key=lambda shape: shape.size, default=None)

    def _program(self) -> Any:
        shape = _Shape(len(self._rows), self._positions)
        return self._base.programs.get(("decode", self._base.config, shape))

    def _move(self, shape: _Shape) -> None:
        rows, positions = shape
        old, make = self._cache, jnp.zeros if self._writes_in_place else aligned_zeros
        self._cache = make_cache(self._base.config, rows, positions, make)
        if old is None or not self.active:
            self._rows, self._positions = [None] * rows, positions
            return
        kept = [row for row, sequence in enumerate(self._rows) if sequence is not None]
        width = min(positions, self._positions)
        # A run of rows is copied once; any others numpy would first gather.
        taken = slice(len(kept)) if kept == list(range(len(kept))) else kept
        now, before = self._memory(self._cache), self._memory(old)
        for new, keys in zip(now.keys, before.keys, strict=True):
            new[: len(kept), ..., :width] = keys[taken, ..., :width]
        for new, values in zip(now.values, before.values, strict=True):
            new[: len(kept), :, :width] = values[taken, :, :width]
        self._rows = [self._rows[row] for row in kept] + [None] * (rows - len(kept))
        self._positions = positions

    def _inputs(self) -> tuple[np.ndarray, np.ndarray, Choice]:
        count = len(self._rows)
        token, position = np.zeros(count, np.int32), np.zeros(count, np.int32)
        choice = _no_choice(count)
        filtered = False
        for row, sequence in enumerate(self._rows):
            if sequence is None:
                continue
            settings, known = sequence.settings, len(sequence.answer.tokens)
            token[row], position[row] = sequence.last_token, sequence.position
            choice.uniform_B_C[row] = sequence.uniform[known : known + DECODE_CHUNK]
            choice.temperature_B[row], choice.limit_B[row] = settings.temperature, sequence.left
            choice.top_k_B[row], choice.top_p_B[row] = settings.top_k, settings.top_p
            choice.stop_ids_B_I[row, : len(settings.stop_ids)] = settings.stop_ids
            filtered |= settings.top_k > 0 or settings.top_p < 1
        return token, position, choice._replace(filtered=np.bool_(filtered))


def begin_decoding(base: BaseModel, weights: Any, rows: int, positions: int, *, urgent: bool = True) -> Key:
    """Has the program of a shape compiled; of the weights only shapes are looked at."""
    key = ("decode", base.config, _Shape(rows, positions))
    name = f"decoding of {rows} × {positions} positions"
    compile_it = functools.partial(_compile, base, weights, rows, positions)
    base.programs.begin(key, name, compile_it, urgent=urgent)
    return key


def _compile(base: BaseModel, weights: Any, rows: int, positions: int) -> Any:
    config = base.config

    def decode(weights: Any, cache: Any, token: Any, position: Any, choice: Any, steps: Any) -> Any:
        return decode_chunk(weights, config, cache, token, position, choice, steps)

    if base.mesh is not None:
        # Where arrays are spread over devices the compiler has to see how: at the first call.
        return decode
    cache = jax.eval_shape(lambda: make_cache(config, rows, positions, jnp.zeros))
    token = np.zeros(rows, np.int32)
    lowered = decode_chunk.lower(weights, config, cache, token, token, _no_choice(rows), np.int32(0))
    return lowered.compile(compiler_options=sampling_options(config))


def _need(sequences: Several[Sequence]) -> int:
    return max(sequence.position for sequence in sequences) + DECODE_CHUNK


def _no_choice(rows: int) -> Choice:
    return Choice(
        uniform_B_C=np.zeros((rows, DECODE_CHUNK), np.float32),
        temperature_B=np.ones(rows, np.float32),
        top_k_B=np.full(rows, -1, np.int32),
        top_p_B=np.ones(rows, np.float32),
        filtered=np.bool_(False),
        stop_ids_B_I=np.full((rows, MAX_STOP_IDS), -1, np.int32),
        limit_B=np.zeros(rows, np.int32),
    )
