"""Turns as compressed bytes, in space proportional to the tokens, not to turns times tokens.

A prompt that extends the stream before it is kept as its new tokens only; logprobs are kept as the
32-bit floats the sampler sent, so what is read back is bit for bit what was sampled.
"""

import json
import struct
import zlib
from array import array
from collections.abc import Sequence

import numpy as np

from termrl.policy.transcript import Transcript, Turn

FASTEST = 1
"""The compression's level: a rollout is stored in the loop's own time, and higher levels save little."""


def encode_turns(turns: Sequence[Turn]) -> bytes:
    heads: list[list[object]] = []
    ids = array("i")
    logprobs: list[bytes] = []
    before: Turn | None = None
    for turn in turns:
        kept = before.end if before is not None and turn.continues(before) else 0
        fresh = turn.prompt_length - kept
        heads.append([kept, fresh, turn.sampled_count, turn.policy_version, turn.stop_reason, turn.seconds])
        ids += turn.ids(kept)
        logprobs.append(turn.logprobs_as(np.float32).tobytes())
        before = turn
    head = json.dumps(heads).encode()
    sizes = struct.pack("<II", len(head), len(ids))
    return zlib.compress(b"".join((sizes, head, ids.tobytes(), *logprobs)), FASTEST)


def decode_turns(blob: bytes) -> tuple[Turn, ...]:
    data = zlib.decompress(blob)
    head_size, id_count = struct.unpack_from("<II", data)
    offset = 8 + head_size
    heads = json.loads(data[8:offset])
    ids: list[int] = np.frombuffer(data, np.int32, id_count, offset).tolist()
    logprobs: list[float] = np.frombuffer(data, np.float32, -1, offset + 4 * id_count).tolist()
    transcript = Transcript()
    at = logprob_at = 0
    for kept, fresh_count, sampled_count, version, stop_reason, seconds in heads:
        transcript.add(
            ids[at : at + fresh_count],
            ids[at + fresh_count : at + fresh_count + sampled_count],
            logprobs[logprob_at : logprob_at + sampled_count],
            policy_version=version,
            stop_reason=stop_reason,
            seconds=seconds,
            after=transcript.last if kept else None,
        )
        at += fresh_count + sampled_count
        logprob_at += sampled_count
    return tuple(transcript.turns)
