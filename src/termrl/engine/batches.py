"""Which sequences are computed together: a few fixed shapes, little padding, the same plan every time.

Sequences are grouped by the smallest length bucket they fit, and every bucket has one height: on a CPU a
bigger batch computes a token no faster, and every further shape costs seconds of compilation. Where computing
costs more than compiling the plan is `fine`: narrow buckets, and what does not fill a batch goes one by
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LENGTHS = (64, 128, 256, 512, 768, 1024, 1536, 2048)
TOKENS = 1024


@dataclass(frozen=True)
class Batch:
    members: tuple[int, ...]
    height: int
    length: int


def fine_length(length: int) -> int:
    """A length padded by a few per cent: to a multiple of 16, 32, 64 … the longer it is, the more."""
    step = 16
    while length > step * 16:
        step *= 2
    return -(-length // step) * step


def bucket_length(length: int) -> int:
    """The length a sequence is padded to; beyond the table, the next multiple of 1024."""
    return next((bucket for bucket in LENGTHS if length <= bucket), -(-length // 1024) * 1024)


def plan(lengths: Sequence[int], *, fine: bool = False) -> list[Batch]:
    """Batches that cover every sequence once; a function of the lengths and their order alone."""
    buckets: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        buckets.setdefault(fine_length(length) if fine else bucket_length(length), []).append(index)
    batches = []
    for length in sorted(buckets):
        members = buckets[length]
        height = max(1, TOKENS // length)
        for start in range(0, len(members), height):
            together = tuple(members[start : start + height])
            if fine and len(together) < 0.9 * height:
                batches += [Batch((member,), 1, length) for member in together]
            else:
                batches.append(Batch(together, height, length))
    return batches
