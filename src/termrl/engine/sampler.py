"""Continuous batching for one snapshot of weights: requests join and leave between chunks of decoding.

A prompt but for its last token is prefilled block by block, through the prefix store; the last token is the
first that decoding feeds. Sampled logprobs are those of the model's distribution at temperature 1, whatever
temperature, top_k or top_p chose the token, so that they compare with `forward` and `compute_logprobs`. The
token that ends an answer (a stop id, the model's end-of-sequence token, or the one that completes a stop
string) is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import jax.numpy as jnp
import numpy as np

from termrl.engine.architecture import SMALL_PARAMETERS
from termrl.engine.batches import plan
from termrl.engine.decoding import (
    DECODE_CHUNK,
    MAX_STOP_IDS,
    Block,
    Cache,
    Choice,
    decode_chunk,
    empty_cache,
    load_row,
    prefill_block,
    sampler_weights,
)
from termrl.engine.llama import Params
from termrl.engine.models import BaseModel
from termrl.engine.prefixes import PrefixStore, block_keys
from termrl.engine.trainer import forward


@dataclass(frozen=True)
class Shapes:
    """The few shapes a model is computed in.

    Matrix products of 2 to 63 rows sum in one order and of 64 or more in another; decoding keeps to the first
    and prefill to the second, so that the number of rows never changes a result.
    """

    slots: tuple[int, ...]
    prefill_rows: tuple[int, ...]
    prefill_block: int
    positions: tuple[int, ...]
    prefix_bytes: int
    """Memory for the keys and values of held prefixes."""


# A small model is quick to compute and slow to compile, shape by shape; a big one has work to fill them.
SMALL = Shapes(
    slots=(8, 24, 48),
    prefill_rows=(2, 4, 8),
    prefill_block=32,
    positions=(256, 512, 768, 1024, 1536, 2048),
    prefix_bytes=128 << 20,
)
BIG = Shapes(
    slots=(2, 8, 16, 32, 48, 63),
    prefill_rows=(1, 2, 4, 8),
    prefill_block=64,
    positions=(128, 256, 512, 1024, 1536, 2048),
    prefix_bytes=2 << 30,
)


@dataclass(frozen=True)
class SamplingSettings:
    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    stops_at_eos: bool = True


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False
    cached_tokens: int = 0
    """Tokens of its prompt whose keys and values were held when it came."""


@dataclass
class _Sequence:
    prompt: np.ndarray
    settings: SamplingSettings
    uniform: np.ndarray
    keys: list[bytes]
    on_done: Callable[[Answer], None]
    is_wanted: Callable[[], bool]
    answer: Answer = field(default_factory=Answer)
    blocks: list[Block] = field(default_factory=list)
    seen: bool = False
    """Whether it was looked up among the held prefixes."""

    @property
    def position(self) -> int:
        """Where the next token to be fed stands."""
        return len(self.prompt) - 1 + len(self.answer.tokens)

    @property
    def last_token(self) -> int:
        return self.answer.tokens[-1] if self.answer.tokens else int(self.prompt[-1])

    @property
    def left(self) -> int:
        return self.settings.max_tokens - len(self.answer.tokens)


@dataclass(frozen=True)
class _Scoring:
    prompt: np.ndarray
    on_done: Callable[[np.ndarray], None]


class Sampler:
    """Not thread-safe: one thread calls everything. `step` does a bounded piece of work."""

    def __init__(self, base: BaseModel, params: Params) -> None:
        self.base = base
        self.params = params
        self._shapes = SMALL if base.config.parameters <= SMALL_PARAMETERS else BIG
        self._weights = sampler_weights(params, base.config)
        self._prefixes = PrefixStore(self._shapes.prefix_bytes)
        self._waiting: deque[_Sequence] = deque()
        self._scoring: list[_Scoring] = []
        self._slots: list[_Sequence | None] = []
        self._cache: Cache | None = None
        self._positions = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._scoring or any(self._slots))

    def sample(
        self,
        prompt: np.ndarray,
        settings: SamplingSettings,
        index: int,
        on_done: Callable[[Answer], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Queues one answer; `index` tells the answers to one prompt apart."""
        generator = np.random.Generator(np.random.Philox(key=[settings.seed % 2**64, index]))
        uniform = generator.random(settings.max_tokens + DECODE_CHUNK, dtype=np.float32)
        self._waiting.append(
            _Sequence(
                prompt,
                settings,
                uniform,
                block_keys(prompt[:-1], self._shapes.prefill_block),
                on_done,
                is_wanted,
            )
        )

    def score(self, prompt: np.ndarray, on_done: Callable[[np.ndarray], None]) -> None:
        """Queues the logprobs of a prompt's tokens, NaN for the first."""
        self._scoring.append(_Scoring(prompt, on_done))

    def release(self) -> None:
        """Gives back the memory of held prefixes; what is still needed is computed again."""
        self._prefixes = PrefixStore(self._shapes.prefix_bytes)

    def step(self) -> None:
        if self._scoring:
            self._score_one_batch()
        self._drop_unwanted()
        room = self._shapes.slots[-1] - sum(slot is not None for slot in self._slots)
        candidates = [self._waiting[i] for i in range(min(room, len(self._waiting)))]
        ready = self._prefill(candidates)
        if ready:
            self._admit(ready)
        if any(self._slots):
            self._decode()
        elif self._cache is not None and not self._waiting:
            self._slots, self._cache, self._positions = [], None, 0

    def _score_one_batch(self) -> None:
        batch = plan([len(item.prompt) for item in self._scoring])[0]
        tokens = np.zeros((batch.height, batch.length), np.int32)
        targets = np.zeros((batch.height, batch.length), np.int32)
        items = [self._scoring[i] for i in batch.members]
        for row, item in enumerate(items):
            tokens[row, : len(item.prompt)] = item.prompt
            targets[row, : len(item.prompt) - 1] = item.prompt[1:]
        found = np.asarray(forward(self.params, self.base.config, tokens, targets))
        members = set(batch.members)
        self._scoring = [item for i, item in enumerate(self._scoring) if i not in members]
        for row, item in enumerate(items):
            head = np.full(1, np.nan, np.float32)
            item.on_done(np.concatenate([head, found[row, : len(item.prompt) - 1]]))

    def _drop_unwanted(self) -> None:
        if any(not sequence.is_wanted() for sequence in self._waiting):
            self._waiting = deque(sequence for sequence in self._waiting if sequence.is_wanted())
        self._slots = [slot if slot is not None and slot.is_wanted() else None for slot in self._slots]

    def _prefill(self, candidates: list[_Sequence]) -> list[_Sequence]:
        """Computes the next missing block of as many candidates as fit; returns those that lack none."""
        wanted: dict[bytes, _Sequence] = {}
        ready = []
        for sequence in candidates:
            first_look = not sequence.seen
            self._take_held_blocks(sequence)
            if first_look:
                sequence.seen = True
                sequence.answer.cached_tokens = min(
                    len(sequence.blocks) * self._shapes.prefill_block, len(sequence.prompt) - 1
                )
            if len(sequence.blocks) == len(sequence.keys):
                ready.append(sequence)
                continue
            held = self._past_bucket(sequence)
            first = next(iter(wanted.values()), None)
            if first is None or (
                len(wanted) < self._shapes.prefill_rows[-1] and held == self._past_bucket(first)
            ):
                wanted.setdefault(sequence.keys[len(sequence.blocks)], sequence)
        if wanted:
            self._compute_blocks(wanted)
        return ready

    def _take_held_blocks(self, sequence: _Sequence) -> None:
        while len(sequence.blocks) < len(sequence.keys):
            block = self._prefixes.get(sequence.keys[len(sequence.blocks)])
            if block is None:
                return
            sequence.blocks.append(block)

    def _compute_blocks(self, wanted: dict[bytes, _Sequence]) -> None:
        sequences = list(wanted.values())
        rows = next(size for size in self._shapes.prefill_rows if len(sequences) <= size)
        past = self._blank(self._past_bucket(sequences[0]), rows)
        width = self._shapes.prefill_block
        tokens = np.zeros((rows, width), np.int32)
        start = np.zeros(rows, np.int32)
        for row, sequence in enumerate(sequences):
            start[row] = len(sequence.blocks) * width
            piece = sequence.prompt[:-1][start[row] : start[row] + width]
            tokens[row, : len(piece)] = piece
            _fill(Block(past.keys[:, row], past.values[:, row]), sequence.blocks)
        computed = prefill_block(
            self._weights, self.base.config, past, jnp.asarray(tokens), jnp.asarray(start)
        )
        keys, values = np.asarray(computed.keys), np.asarray(computed.values)
        for row, key in enumerate(wanted):
            self._prefixes.put(key, Block(keys[:, row].copy(), values[:, row].copy()))

    def _past_bucket(self, sequence: _Sequence) -> int:
        return self._position_bucket(len(sequence.blocks) * self._shapes.prefill_block)

    def _position_bucket(self, positions: int) -> int:
        sizes = self._shapes.positions
        return next((size for size in sizes if positions <= size), -(-positions // 1024) * 1024)

    def _slot_bucket(self, count: int) -> int:
        slots = self._shapes.slots
        return next((size for size in slots if count <= size), slots[-1])

    def _blank(self, positions: int, rows: int) -> Block:
        config = self.base.config
        lead = (config.num_hidden_layers, rows, config.num_key_value_heads)
        return Block(
            np.zeros((*lead, config.head_size, positions), np.float32),
            np.zeros((*lead, positions, config.head_size), np.float32),
        )

    def _admit(self, ready: list[_Sequence]) -> None:
        arrived = {id(sequence) for sequence in ready}
        self._waiting = deque(sequence for sequence in self._waiting if id(sequence) not in arrived)
        active = [slot for slot in self._slots if slot is not None]
        self._fit([*active, *ready])
        for sequence in ready:
            row = self._slots.index(None)
            prompt = self._blank(self._positions, 1)
            prompt = Block(prompt.keys[:, 0], prompt.values[:, 0])
            _fill(prompt, sequence.blocks)
            sequence.blocks = []
            assert self._cache is not None
            self._cache = load_row(self._cache, jnp.asarray(row), prompt)
            self._slots[row] = sequence

    def _fit(self, sequences: list[_Sequence]) -> None:
        """Gives the cache the rows and positions these sequences need now, if it has too few or far more."""
        need = max(sequence.position for sequence in sequences) + DECODE_CHUNK
        rows, positions = self._slot_bucket(len(sequences)), self._position_bucket(need)
        if self._cache is None:
            self._cache = empty_cache(self.base.config, rows, positions)
            self._slots, self._positions = [None] * rows, positions
            return
        enough = rows <= len(self._slots) and positions <= self._positions
        # A margin, so that a number that goes up and down around a bucket's edge does not copy every time.
        too_many = self._slot_bucket(len(sequences) * 4 // 3) < len(self._slots)
        too_long = self._position_bucket(need + 64) < self._positions
        if enough and not too_many and not too_long:
            return
        kept = [row for row, slot in enumerate(self._slots) if slot is not None]
        width = min(positions, self._positions)
        keys = [np.zeros((rows, *old.shape[1:3], positions), np.float32) for old in self._cache.keys]
        values = [
            np.zeros((rows, old.shape[1], positions, old.shape[3]), np.float32) for old in self._cache.values
        ]
        for new, old in zip(keys, self._cache.keys, strict=True):
            new[: len(kept), ..., :width] = np.asarray(old)[kept, ..., :width]
        for new, old in zip(values, self._cache.values, strict=True):
            new[: len(kept), :, :width] = np.asarray(old)[kept, :, :width]
        self._cache = Cache(tuple(map(jnp.asarray, keys)), tuple(map(jnp.asarray, values)))
        moved: list[_Sequence | None] = [self._slots[row] for row in kept]
        self._slots = moved + [None] * (rows - len(kept))
        self._positions = positions

    def _decode(self) -> None:
        self._fit([slot for slot in self._slots if slot is not None])
        assert self._cache is not None
        token, position, choice = self._inputs()
        decoded, self._cache = decode_chunk(
            self._weights,
            self.base.config,
            self._cache,
            jnp.asarray(token),
            jnp.asarray(position),
            choice,
            jnp.asarray(DECODE_CHUNK, jnp.int32),
        )
        tokens, logprobs = np.asarray(decoded.tokens_B_C).tolist(), np.asarray(decoded.logprobs_B_C).tolist()
        counts, stopped = np.asarray(decoded.count_B).tolist(), np.asarray(decoded.stopped_B).tolist()
        for row, slot in enumerate(self._slots):
            if slot is None:
                continue
            known = len(slot.answer.tokens)
            slot.answer.tokens += tokens[row][: counts[row]]
            slot.answer.logprobs += logprobs[row][: counts[row]]
            slot.answer.stopped = stopped[row] or self._cut_at_stop_string(slot, known)
            if slot.answer.stopped or slot.left <= 0:
                self._slots[row] = None
                slot.on_done(slot.answer)

    def _inputs(self) -> tuple[np.ndarray, np.ndarray, Choice]:
        rows = len(self._slots)
        token, position = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        uniform = np.zeros((rows, DECODE_CHUNK), np.float32)
        temperature, top_p = np.ones(rows, np.float32), np.ones(rows, np.float32)
        top_k, limit = np.full(rows, -1, np.int32), np.zeros(rows, np.int32)
        stop_ids = np.full((rows, MAX_STOP_IDS), -1, np.int32)
        filtered = False
        for row, slot in enumerate(self._slots):
            if slot is None:
                continue
            settings = slot.settings
            known = len(slot.answer.tokens)
            token[row], position[row], limit[row] = slot.last_token, slot.position, slot.left
            uniform[row] = slot.uniform[known : known + DECODE_CHUNK]
            temperature[row], top_k[row], top_p[row] = settings.temperature, settings.top_k, settings.top_p
            filtered |= settings.top_k > 0 or settings.top_p < 1
            stop_ids[row, : len(settings.stop_ids)] = settings.stop_ids
        choice = Choice(uniform, temperature, top_k, top_p, np.bool_(filtered), stop_ids, limit)
        return token, position, choice

    def _cut_at_stop_string(self, sequence: _Sequence, known: int) -> bool:
        """Ends the answer with the first token that completes a stop string."""
        stops = sequence.settings.stop_strings
        if not stops:
            return False
        answer = sequence.answer
        decode = self.base.tokenizer.decode
        if not any(stop in decode(answer.tokens, skip_special_tokens=False) for stop in stops):
            return False
        for size in range(known + 1, len(answer.tokens) + 1):
            text = decode(answer.tokens[:size], skip_special_tokens=False)
            if any(stop in text for stop in stops):
                del answer.tokens[size:], answer.logprobs[size:]
                return True
        return True


def _fill(past: Block, blocks: list[Block]) -> None:
    for i, block in enumerate(blocks):
        size = block.keys.shape[-1]
        span = slice(i * size, (i + 1) * size)
        width = past.keys[..., span].shape[-1]
        past.keys[..., span] = block.keys[..., :width]
        past.values[..., span, :] = block.values[..., :width, :]
