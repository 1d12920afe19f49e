"""Turns as compressed bytes, in space proportional to the tokens, not to turns times tokens.

A prompt that extends the stream before it is kept as its new tokens only; logprobs are kept as the
32-bit floats the sampler sent, so what is read back is bit for bit what was sampled.
"""

import json
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from termrl.policy.transcript import Transcript, Turn


def encode_turns(turns: Sequence[Turn]) -> bytes:
    heads: list[list[object]] = []
    ids: list[int] = []
    logprobs: list[float] = []
    before: Turn | None = None
    for turn in turns:
        kept = before.end if before is not None and turn.continues(before) else 0
        fresh = turn.observed if kept and kept == turn.start else turn.prompt[kept:]
        heads.append(
            [kept, len(fresh), turn.sampled_count, turn.policy_version, turn.stop_reason, turn.seconds]
        )
        ids += [*fresh, *turn.sampled]
        logprobs += turn.logprobs
        before = turn
    head = json.dumps(heads).encode()
    body = np.asarray(ids, np.int32).tobytes() + np.asarray(logprobs, np.float32).tobytes()
    return zlib.compress(struct.pack("<II", len(head), len(ids)) + head + body, 3)


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
