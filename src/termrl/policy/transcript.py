"""What the policy saw and said, token by token, in memory that grows with the tokens alone.

A `Transcript` is one conversation as it happens: a prompt that extends the stream so far goes on with it,
any other begins a new one. A `Turn` is one model call and a view into its stream: the prompt's ids as they
were sent, the ids and logprobs the sampler returned, the weight version that sampled them. Turns of one
stream are a `Segment`, which becomes one datum. Nothing here is ever re-tokenised.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

_IDS = "i"
_LOGPROBS = "d"


class Turn:
    """One model call. `prompt` is the whole prompt; `logprobs` has one entry per sampled token.

    The turns of a segment share one buffer of ids: `prompt` and `tokens` are copied out of it when asked
    for, so a conversation of many turns is held once and not once a turn.
    """

    __slots__ = (
        "_logprobs",
        "_stream",
        "end",
        "policy_version",
        "prompt_length",
        "seconds",
        "start",
        "stop_reason",
    )

    def __init__(
        self,
        prompt: Sequence[int],
        sampled: Sequence[int],
        logprobs: Sequence[float],
        policy_version: int,
        stop_reason: str,
        seconds: float = 0.0,
    ) -> None:
        """A turn that stands alone; `Transcript.add` makes the ones that share a stream."""
        self._fill(array(_IDS, prompt), 0, sampled, logprobs, policy_version, stop_reason, seconds)

    def _fill(
        self,
        stream: "array[int]",
        start: int,
        sampled: Sequence[int],
        logprobs: Sequence[float],
        policy_version: int,
        stop_reason: str,
        seconds: float,
    ) -> None:
        if len(sampled) != len(logprobs):
            raise ValueError(f"a turn has {len(sampled)} sampled tokens but {len(logprobs)} logprobs")
        self._stream = stream
        self.start = start
        """How much of the stream was there before this turn's prompt added to it; 0 begins a segment."""
        self.prompt_length = len(stream)
        stream.extend(sampled)
        self.end = len(stream)
        self._logprobs = array(_LOGPROBS, logprobs)
        self.policy_version = policy_version
        self.stop_reason = stop_reason
        self.seconds = seconds

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(self._stream[: self.prompt_length])

    @property
    def observed(self) -> tuple[int, ...]:
        """What the prompt added to the stream: the whole of it where the turn begins one."""
        return tuple(self._stream[self.start : self.prompt_length])

    @property
    def sampled(self) -> tuple[int, ...]:
        return tuple(self._stream[self.prompt_length : self.end])

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self._stream[: self.end])

    @property
    def logprobs(self) -> tuple[float, ...]:
        return tuple(self._logprobs)

    @property
    def sampled_count(self) -> int:
        return self.end - self.prompt_length

    def ids(self, start: int = 0) -> "array[int]":
        """The stream up to the end of this turn, from a position on, as it is held: 32-bit integers."""
        return self._stream[start : self.end]

    def logprobs_as(self, dtype: type[np.floating]) -> np.ndarray:
        """The logprobs as an array, without a Python float each."""
        return np.frombuffer(self._logprobs, np.float64).astype(dtype)

    def continues(self, other: "Turn | None") -> bool:
        """Whether this turn's prompt goes on from where `other` ended, token by token."""
        if other is None:
            return False
        if self._stream is other._stream:
            return self.start == other.end
        return self.prompt_length >= other.end and self._stream[: other.end] == other._stream[: other.end]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turn):
            return NotImplemented
        return self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((self.prompt_length, self.end, self.policy_version))

    def __repr__(self) -> str:
        return (
            f"Turn({self.prompt_length} prompt tokens, {self.sampled_count} sampled, "
            f"policy version {self.policy_version}, {self.stop_reason})"
        )

    def _facts(self) -> tuple[object, ...]:
        return (
            self.prompt_length,
            self._stream[: self.end],
            self._logprobs,
            self.policy_version,
            self.stop_reason,
            self.seconds,
        )


class Transcript:
    """The turns of one conversation in the order in which they happened."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.breaks = 0
        """How often a prompt did not extend what came before it, and a new segment began."""

    @property
    def last(self) -> Turn | None:
        return self.turns[-1] if self.turns else None

    def add(
        self,
        observed: Sequence[int],
        sampled: Sequence[int],
        logprobs: Sequence[float],
        *,
        policy_version: int,
        stop_reason: str,
        seconds: float = 0.0,
        after: Turn | None = None,
    ) -> Turn:
        """Records a call. Its prompt was the stream that `after` ended plus `observed`, or that alone."""
        turn = Turn.__new__(Turn)
        if after is not None and after.end == len(after._stream):
            stream, start = after._stream, after.end
            stream.extend(observed)
        else:
            earlier = array(_IDS) if after is None else after._stream[: after.end]
            stream, start = earlier + array(_IDS, observed), 0
            self.breaks += bool(self.turns)
        turn._fill(stream, start, sampled, logprobs, policy_version, stop_reason, seconds)
        self.turns.append(turn)
        return turn


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A token stream with the sampled positions marked: what becomes one datum.

    `ids[i]` was sampled when `mask[i]`; `logprobs[i]` is its logprob then, and 0 elsewhere.
    """

    ids: np.ndarray
    mask: np.ndarray
    logprobs: np.ndarray
    turns: int

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self.ids.tolist())

    @property
    def sampled_count(self) -> int:
        return int(self.mask.sum())


def segments_of(turns: Iterable[Turn]) -> list[Segment]:
    """Merges turns into segments: a turn joins the last segment when its prompt extends that stream."""
    segments: list[Segment] = []
    members: list[Turn] = []
    for turn in turns:
        if members and not turn.continues(members[-1]):
            segments.append(_segment(members))
            members = []
        members.append(turn)
    if members:
        segments.append(_segment(members))
    return segments


def _segment(members: Sequence[Turn]) -> Segment:
    ids = np.frombuffer(members[-1].ids(), np.int32)
    mask = np.zeros(len(ids), bool)
    logprobs = np.zeros(len(ids), np.float64)
    for turn in members:
        mask[turn.prompt_length : turn.end] = True
        logprobs[turn.prompt_length : turn.end] = turn.logprobs_as(np.float64)
    return Segment(ids, mask, logprobs, len(members))
