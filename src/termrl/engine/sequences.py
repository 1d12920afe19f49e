"""One answer being sampled: what was asked, what is there so far, when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Tokenizer

from termrl.engine.decoding import DECODE_CHUNK, Block
from termrl.engine.prefixes import block_keys


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


@dataclass(eq=False)
class Sequence:
    prompt: np.ndarray
    settings: SamplingSettings
    uniform: np.ndarray
    """One number in [0, 1) for every token it may have, and for the rest of its last chunk."""
    on_done: Callable[[Answer], None]
    is_wanted: Callable[[], bool]
    answer: Answer = field(default_factory=Answer)
    known: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    """What is prefilled before it decodes: the prompt, and its tokens so far where it was set back."""
    keys: list[bytes] = field(default_factory=list)
    """Of the blocks of what is known but for its last token, which is the first that decoding feeds."""
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

    def set_back(self, block: int) -> None:
        """Has it start with a prefill of everything so far, in blocks of that size."""
        self.known = np.concatenate([self.prompt, np.asarray(self.answer.tokens, np.int32)])
        self.keys = block_keys(self.known[:-1], block)
        self.blocks = []

    def take(self, tokens: list[int], logprobs: list[float], stopped: bool, tokenizer: Tokenizer) -> bool:
        """Adds what was decoded; whether the answer is at its end."""
        known = len(self.answer.tokens)
        self.answer.tokens += tokens
        self.answer.logprobs += logprobs
        self.answer.stopped = stopped or self._cut_at_stop_string(known, tokenizer)
        return self.answer.stopped or self.left <= 0

    def _cut_at_stop_string(self, known: int, tokenizer: Tokenizer) -> bool:
        """Ends the answer with the first token that completes a stop string."""
        stops, answer = self.settings.stop_strings, self.answer

        def ends_at(size: int) -> bool:
            text = tokenizer.decode(answer.tokens[:size], skip_special_tokens=False)
            return any(stop in text for stop in stops)

        if not stops or not ends_at(len(answer.tokens)):
            return False
        size = next(size for size in range(known + 1, len(answer.tokens) + 1) if ends_at(size))
        del answer.tokens[size:], answer.logprobs[size:]
        return True


def new_sequence(
    prompt: np.ndarray,
    settings: SamplingSettings,
    index: int,
    block: int,
    on_done: Callable[[Answer], None],
    is_wanted: Callable[[], bool],
) -> Sequence:
    """`index` tells the answers to one prompt apart."""
    generator = np.random.Generator(np.random.Philox(key=[settings.seed % 2**64, index]))
    uniform = generator.random(settings.max_tokens + DECODE_CHUNK, dtype=np.float32)
    sequence = Sequence(prompt, settings, uniform, on_done, is_wanted)
    sequence.set_back(block)
    return sequence
