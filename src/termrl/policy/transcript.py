"""What the policy saw and said, token by token.

A turn is one model call: the prompt's ids as they were sent, the ids and logprobs the sampler
returned, and the weight version that sampled them. Turns whose prompts extend each other token by
token form a segment; when a prompt does not extend what came before (the harness rewrote history), a
new segment begins. Nothing here is ever re-tokenised.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call. `prompt` is the whole prompt, `logprobs` has one entry per sampled token."""

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    stop_reason: str
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if len(self.sampled) != len(self.logprobs):
            raise ValueError(
                f"a turn has {len(self.sampled)} sampled tokens but {len(self.logprobs)} logprobs"
            )

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.sampled


@dataclass(frozen=True, slots=True)
class Segment:
    """A token stream with the sampled positions marked: what becomes one datum.

    `tokens[i]` was sampled when `mask[i]`; `logprobs[i]` is its logprob then, and 0 elsewhere.
    """

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    turns: int

    @property
    def sampled_count(self) -> int:
        return sum(self.mask)


def segments_of(turns: Iterable[Turn]) -> list[Segment]:
    """Merges turns into segments: a turn joins the last segment when its prompt extends that stream."""
    segments: list[Segment] = []
    tokens: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    count = 0

    def close() -> None:
        if count:
            segments.append(Segment(tuple(tokens), tuple(mask), tuple(logprobs), count))

    for turn in turns:
        if count and extends(turn.prompt, tokens):
            observed: Sequence[int] = turn.prompt[len(tokens) :]
        else:
            close()
            tokens, mask, logprobs, count = [], [], [], 0
            observed = turn.prompt
        tokens += [*observed, *turn.sampled]
        mask += [False] * len(observed) + [True] * len(turn.sampled)
        logprobs += [0.0] * len(observed) + list(turn.logprobs)
        count += 1
    close()
    return segments


def extends(prompt: Sequence[int], stream: Sequence[int]) -> bool:
    """Whether `prompt` begins with the whole of `stream`."""
    return len(prompt) >= len(stream) and tuple(prompt[: len(stream)]) == tuple(stream)
