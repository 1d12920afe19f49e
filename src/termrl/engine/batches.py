"""Which sequences are computed together: a few fixed shapes, little padding, the same plan every time.

Sequences are grouped by the smallest length bucket they fit. A bucket's batches have one of two heights, so
that the number of compiled shapes stays small and a lone sequence does not pay for a full batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LENGTHS = (64, 128, 256, 512, 768, 1024, 1536, 2048)
TOKENS = 4096
SMALL_FRACTION = 8


@dataclass(frozen=True)
class Batch:
    members: tuple[int, ...]
    height: int
    length: int


def bucket_length(length: int) -> int:
    """The length a sequence is padded to; beyond the table, the next multiple of 1024."""
    return next((bucket for bucket in LENGTHS if length <= bucket), -(-length // 1024) * 1024)


def plan(lengths: Sequence[int]) -> list[Batch]:
    """Batches that cover every sequence once; a function of the lengths and their order alone."""
    buckets: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        buckets.setdefault(bucket_length(length), []).append(index)
    batches = []
    for length in sorted(buckets):
        members = buckets[length]
        full = 1
        while full * 2 * length <= TOKENS:
            full *= 2
        small = max(1, full // SMALL_FRACTION)
        while members:
            left = len(members)
            height = small if -(-left // small) * small < full else full
            batches.append(Batch(tuple(members[:height]), height, length))
            members = members[height:]
    return batches
