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
from typing import Any

import jax
import numpy as np

from termrl.engine.batches import plan
from termrl.engine.decoding import Block, prefill_block, sampler_weights
from termrl.engine.llama import Params
from termrl.engine.losses import LossSettings
from termrl.engine.models import BaseModel
from termrl.engine.passes import forward_pass
from termrl.engine.prefixes import PrefixStore, blank_block, fill, row_of
from termrl.engine.programs import Key
from termrl.engine.rows import Datum, lay_out
from termrl.engine.sequences import Answer, SamplingSettings, Sequence, new_sequence
from termrl.engine.shapes import shapes_of
from termrl.engine.slots import Slots, begin_decoding

FIRST_ROWS, FIRST_POSITIONS = 8, 512
"""The shape that is compiled before anything is asked for."""
PREFILL_SECONDS = 0.5
"""How long prompts are prefilled before those that are ready go on, where most are not."""


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
        """Blocks of prefill until those that wait are ready; not long where others wait for their next token.

        Answers that begin together are decoded together, which costs least.
        """
        candidates = [self._waiting[i] for i in range(min(self._slots.room, len(self._waiting)))]
        few = 2 * len(self._slots.active) < len(candidates)
        end = time.monotonic() + (PREFILL_SECONDS if few else 0.0)
        ready, computed = self._prefill(candidates)
        did = computed
        while computed and len(ready) < len(candidates) and time.monotonic() < end:
            ready, computed = self._prefill(candidates)
        return ready, did

    def _prefill(self, candidates: list[Sequence]) -> tuple[list[Sequence], bool]:
        """Computes the next missing block of as many candidates as fit together.

        Returns the candidates that lack none, and whether anything was computed.
        """
        wanted: dict[bytes, Sequence] = {}
        ready = []
        for sequence in candidates:
            self._take_held_blocks(sequence)
            if len(sequence.blocks) == len(sequence.keys):
                ready.append(sequence)
                continue
            past = self._past(sequence)
            first = next(iter(wanted.values()), None)
            limit = self._shapes.prefill_rows_that_fit(past, self.base.config)
            if first is None or (len(wanted) < limit and past == self._past(first)):
                wanted.setdefault(sequence.keys[len(sequence.blocks)], sequence)
        return ready, bool(wanted) and self._compute_blocks(wanted)

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

    def _compute_blocks(self, wanted: dict[bytes, Sequence]) -> bool:
        """Whether it could: the program for it may not be compiled yet."""
        past_bucket = self._past(next(iter(wanted.values())))
        found = self._program(len(wanted), past_bucket)
        if found is None:
            return False
        program, rows, positions = found
        past = blank_block(self.base.config, positions, rows)
        width = self._shapes.prefill_block
        tokens, start = np.zeros((rows, width), np.int32), np.zeros(rows, np.int32)
        for row, sequence in enumerate(list(wanted.values())[:rows]):
            start[row] = len(sequence.blocks) * width
            piece = sequence.known[:-1][start[row] : start[row] + width]
            tokens[row, : len(piece)] = piece
            fill(row_of(past, row), sequence.blocks)
        computed = program(self._weights, past, tokens, start)
        keys, values = np.asarray(computed.keys), np.asarray(computed.values)
        for row, key in enumerate(list(wanted)[:rows]):
            self._prefixes.put(key, Block(keys[:, row].copy(), values[:, row].copy()))
        return True

    def _program(self, count: int, past: int) -> tuple[Any, int, int] | None:
        """A compiled prefill with its rows and positions: for all rows, or while that is compiled another."""
        programs, config = self.base.programs, self.base.config
        rows = next(size for size in self._shapes.prefill_rows if count <= size)
        ideal = ("prefill", config, rows, past)
        usable = [ideal]
        if not programs.is_ready(ideal):
            self._awaited = _begin_prefill(self.base, self._weights, rows, past)
            limit = self._shapes.prefill_rows_that_fit
            usable = [
                key
                for key in programs.ready("prefill")
                if key[1] == config and key[3] >= past and key[2] <= limit(key[3], config)
            ]
        if not usable:
            return None
        best = min(usable, key=lambda key: (-min(key[2], count), key[2] * key[3]))
        return programs.get(best), best[2], best[3]

    def _past(self, sequence: Sequence) -> int:
        return self._shapes.position_bucket(len(sequence.blocks) * self._shapes.prefill_block)


def prepare(base: BaseModel) -> None:
    """Begins to compile what the first answers can be computed with, whatever they turn out to need."""
    shapes = shapes_of(base.config)
    weights = jax.eval_shape(lambda params: sampler_weights(params, base.config), base.params)
    positions = shapes.position_bucket(min(FIRST_POSITIONS, base.config.max_position_embeddings))
    _begin_prefill(base, weights, shapes.prefill_rows[-1], positions, urgent=False)
    begin_decoding(base, weights, FIRST_ROWS, positions, urgent=False)


def _begin_prefill(base: BaseModel, weights: Any, rows: int, past: int, *, urgent: bool = True) -> Key:
    config, block = base.config, shapes_of(base.config).prefill_block

    def compile_it() -> Any:
        if base.mesh is not None:
            return lambda weights, past, tokens, start: prefill_block(weights, config, past, tokens, start)
        tokens, start = np.zeros((rows, block), np.int32), np.zeros(rows, np.int32)
        return prefill_block.lower(weights, config, blank_block(config, past, rows), tokens, start).compile()

    key = ("prefill", config, rows, past)
    name = f"prefill of {rows} prompts after {past} positions"
    base.programs.begin(key, name, compile_it, urgent=urgent)
    return key


def _as_datum(prompt: np.ndarray) -> Datum:
    nothing = np.zeros(len(prompt), np.float32)
    return Datum(prompt, np.append(prompt[1:], 0), nothing, nothing)
