"""Continuous batching for one snapshot of weights: requests join and leave between chunks of decoding.

A prompt but for its last token is prefilled block by block, through the prefix store; the last token is the
first that decoding feeds. Sampled logprobs are those of the model's distribution at temperature 1, whatever
temperature, top_k or top_p chose the token, so that they compare with `forward` and `compute_logprobs`. The
token that ends an answer (a stop id, the model's end-of-sequence token, or the one that completes a stop
string) is kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from termrl.engine.batches import plan
from termrl.engine.buffers import Room
from termrl.engine.compilation import sampling_options
from termrl.engine.decoding import Block, make_cache, prefill_block, sampler_weights
from termrl.engine.llama import Params
from termrl.engine.losses import LossSettings
from termrl.engine.models import BaseModel
from termrl.engine.passes import forward_pass
from termrl.engine.prefixes import PrefixStore, by_layer, joined, pages_of
from termrl.engine.programs import Key
from termrl.engine.rows import Datum, lay_out
from termrl.engine.sequences import Answer, SamplingSettings, Sequence, new_sequence
from termrl.engine.shapes import Piece, shapes_of
from termrl.engine.slots import Slots, begin_decoding

FIRST_ROWS, FIRST_POSITIONS = 8, 512
"""The shape that is compiled before anything is asked for."""
PREFILL_SECONDS, IDLE_PREFILL_SECONDS = 0.5, 2.0
"""How long prompts are prefilled before those that are ready go on, where most are not: not long where others
wait for their next token."""


class _PrefillShape(NamedTuple):
    rows: int
    width: int
    past: int

    @property
    def size(self) -> int:
        return self.rows * (self.width + self.past)


@dataclass(frozen=True)
class _Scoring:
    prompt: np.ndarray
    on_done: Callable[[np.ndarray], None]


class Sampler:
    """Not thread-safe: one thread calls everything. `step` does a bounded piece of work."""

    def __init__(self, base: BaseModel, params: Params) -> None:
        self.base = base
        self.params = params
        self._shapes = shapes_of(base.config)
        self._weights = sampler_weights(params, base.config)
        self._prefixes = PrefixStore(self._shapes.prefix_bytes)
        self._room = Room()
        self._slots = Slots(base, self._weights, self._shapes)
        self._waiting: deque[Sequence] = deque()
        self._scoring: list[_Scoring] = []
        self._awaited: Key | None = None

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._scoring or self._slots.active)

    def sample(
        self,
        prompt: np.ndarray,
        settings: SamplingSettings,
        index: int,
        on_done: Callable[[Answer], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Queues one answer; `index` tells the answers to one prompt apart."""
        block = self._shapes.prefill_block
        self._waiting.append(new_sequence(prompt, settings, index, block, on_done, is_wanted))

    def score(self, prompt: np.ndarray, on_done: Callable[[np.ndarray], None]) -> None:
        """Queues the logprobs of a prompt's tokens, NaN for the first."""
        self._scoring.append(_Scoring(prompt, on_done))

    def release(self) -> None:
        """Gives back the memory of held prefixes; what is still needed is computed again."""
        self._prefixes = PrefixStore(self._shapes.prefix_bytes)
        self._room = Room()

    def step(self) -> None:
        """A batch of scores, a block of prefill, a chunk of decoding; or a moment's wait for a program."""
        self._awaited = self._slots.awaited = None
        worked = bool(self._scoring) and self._score_one_batch()
        self._drop_unwanted()
        self._waiting.extendleft(self._slots.set_back())
        ready, computed = self._prefill_for_a_while()
        admitted = set(self._slots.admit(ready)) if ready else set()
        if admitted:
            self._waiting = deque(sequence for sequence in self._waiting if sequence not in admitted)
        if self._slots.active:
            ended = self._slots.decode()
            worked |= ended is not None
            for sequence in ended or ():
                sequence.on_done(sequence.answer)
        elif not self._waiting:
            self._slots.clear()
        awaited = self._awaited or self._slots.awaited
        if awaited is not None and not (worked or computed or admitted):
            self.base.programs.wait(awaited)

    def _score_one_batch(self) -> bool:
        """Whether it could: the program for it may not be compiled yet."""
        items = self._scoring
        data = [_as_datum(item.prompt) for item in items]
        batch = plan([len(item.prompt) for item in items])[0]
        compiled = forward_pass(self.base, self.params, batch.height, batch.length, ())
        if not self.base.programs.is_ready(compiled.key):
            self._awaited = compiled.key
            return False
        found, _ = compiled.run(self.params, lay_out(data, batch, 0, LossSettings()))
        found = np.asarray(found)
        done = {place.member for place in batch.places}
        self._scoring = [item for i, item in enumerate(items) if i not in done]
        for place in batch.places:
            item = items[place.member]
            head = np.full(1, np.nan, np.float32)
            scores = found[place.row, place.start : place.start + len(item.prompt) - 1]
            item.on_done(np.concatenate([head, scores]))
        return True

    def _drop_unwanted(self) -> None:
        if any(not sequence.is_wanted() for sequence in self._waiting):
            self._waiting = deque(sequence for sequence in self._waiting if sequence.is_wanted())
        self._slots.drop_unwanted()

    def _prefill_for_a_while(self) -> tuple[list[Sequence], bool]:
        """Blocks of prefill until those that wait are ready.

        Answers that begin together are decoded together, which costs least.
        """
        candidates = [self._waiting[i] for i in range(min(self._slots.room, len(self._waiting)))]
        active = len(self._slots.active)
        patience = IDLE_PREFILL_SECONDS if active == 0 else PREFILL_SECONDS
        end = time.monotonic() + (patience if 2 * active < len(candidates) else 0.0)
        ready, computed = self._prefill(candidates)
        did = computed
        while computed and len(ready) < len(candidates) and time.monotonic() < end:
            ready, computed = self._prefill(candidates)
        return ready, did

    def _prefill(self, candidates: list[Sequence]) -> tuple[list[Sequence], bool]:
        """Computes the next missing piece of as many candidates as fit together.

        Returns the candidates that lack none, and whether anything was computed.
        """
        wanted: dict[bytes, Sequence] = {}
        ready = []
        first: tuple[Piece, int] | None = None
        for sequence in candidates:
            self._take_held_blocks(sequence)
            if len(sequence.blocks) == len(sequence.keys):
                ready.append(sequence)
                continue
            piece, past = self._next_piece(sequence)
            limit = self._shapes.prefill_rows_that_fit(piece.rows, past, self.base.config)
            if first is None or (len(wanted) < limit and (piece, past) == first):
                first = piece, past
                wanted.setdefault(sequence.keys[len(sequence.blocks)], sequence)
        return ready, first is not None and self._compute(list(wanted.values()), *first)

    def _next_piece(self, sequence: Sequence) -> tuple[Piece, int]:
        """The shape of what is computed next, and the bucket of the positions before it."""
        start = len(sequence.blocks) * self._shapes.prefill_block
        missing = len(sequence.known) - 1 - start
        return self._shapes.piece(missing), self._shapes.past_bucket(start)

    def _take_held_blocks(self, sequence: Sequence) -> None:
        while len(sequence.blocks) < len(sequence.keys):
            block = self._prefixes.get(sequence.keys[len(sequence.blocks)])
            if block is None:
                break
            sequence.blocks.append(block)
        if not sequence.seen:
            sequence.seen = True
            held = len(sequence.blocks) * self._shapes.prefill_block
            sequence.answer.cached_tokens = min(held, len(sequence.prompt) - 1)

    def _compute(self, sequences: list[Sequence], piece: Piece, past_bucket: int) -> bool:
        """Whether it could: the program for it may not be compiled yet."""
        found = self._program(len(sequences), piece, past_bucket)
        if found is None:
            return False
        program, (rows, width, positions) = found
        page = self._shapes.prefill_block
        taken = [sequence.blocks for sequence in sequences[:rows]]
        past = joined(self.base.config, positions, taken + [[]] * (rows - len(taken)), self._room)
        tokens = np.zeros((rows, width), np.int32)
        start, size = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        for row, sequence in enumerate(sequences[:rows]):
            start[row] = len(sequence.blocks) * page
            part = sequence.known[:-1][start[row] : start[row] + width]
            tokens[row, : len(part)] = part
            size[row] = len(part)
        computed = program(self._weights, by_layer(past), tokens, start, size)
        computed = Block(np.asarray(computed.keys), np.asarray(computed.values))
        for row, sequence in enumerate(sequences[:rows]):
            keys = sequence.keys[len(sequence.blocks) :]
            for key, block in zip(keys, pages_of(computed, row, int(size[row]), page), strict=False):
                self._prefixes.put(key, block)
        return True

    def _program(self, count: int, piece: Piece, past: int) -> tuple[Any, _PrefillShape] | None:
        """A compiled prefill with its shape: for all rows, or while that is compiled another."""
        programs, config, shapes = self.base.programs, self.base.config, self._shapes
        rows = next(size for size in piece.rows if count <= size)
        ideal = _PrefillShape(rows, piece.width, past)
        if programs.is_ready(("prefill", config, ideal)):
            return programs.get(("prefill", config, ideal)), ideal
        self._awaited = _begin_prefill(self.base, self._weights, ideal)
        usable = [
            shape
            for _, of, shape in programs.ready("prefill")
            if of == config
            and shape.past >= past
            and (shape.width % shapes.prefill_block == 0 or shape.width >= piece.width)
            and shape.rows <= shapes.prefill_rows_that_fit((1, shape.rows), shape.past, config)
        ]
        if not usable:
            return None
        best = min(
            usable,
            key=lambda shape: (-min(shape.rows, count) * min(shape.width, piece.width), shape.size),
        )
        return programs.get(("prefill", config, best)), best


def prepare(base: BaseModel) -> None:
    """Begins to compile what the first answers can be computed with, whatever they turn out to need."""
    shapes = shapes_of(base.config)
    weights = jax.eval_shape(lambda params: sampler_weights(params, base.config), base.params)
    positions = shapes.position_bucket(min(FIRST_POSITIONS, base.config.max_position_embeddings))
    piece = next(piece for piece in shapes.pieces if piece.width == shapes.prefill_block)
    first = _PrefillShape(piece.rows[-1], piece.width, positions)
    _begin_prefill(base, weights, first, urgent=False)
    begin_decoding(base, weights, FIRST_ROWS, positions, urgent=False)


def _begin_prefill(base: BaseModel, weights: Any, shape: _PrefillShape, *, urgent: bool = True) -> Key:
    config = base.config

    def compile_it() -> Any:
        if base.mesh is not None:
            return lambda weights, *given: prefill_block(weights, config, *given)
        tokens, start = np.zeros((shape.rows, shape.width), np.int32), np.zeros(shape.rows, np.int32)
        past = jax.eval_shape(lambda: make_cache(config, shape.rows, shape.past, jnp.zeros))
        lowered = prefill_block.lower(weights, config, past, tokens, start, start)
        return lowered.compile(compiler_options=sampling_options(config))

    key = ("prefill", config, shape)
    name = f"prefill of {shape.rows} × {shape.width} tokens after {shape.past} positions"
    base.programs.begin(key, name, compile_it, urgent=urgent)
    return key


def _as_datum(prompt: np.ndarray) -> Datum:
    nothing = np.zeros(len(prompt), np.float32)
    return Datum(prompt, np.append(prompt[1:], 0), nothing, nothing)
