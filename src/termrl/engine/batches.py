"""Which sequences are computed together: packed into rows of a few fixed lengths, the same plan every time.

Several sequences share a row, one after the other; each attends to itself alone. A row is as long as its
first, longest sequence asks for, or longer where that wastes less: padding costs what tokens cost, attention
grows with the row, and every further shape costs seconds of compilation. A shape is a row, or rows that make
up about `TOKENS` tokens: on a CPU a bigger batch computes a token no faster.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

LENGTHS = (64, 128, 256, 384, 512, 640, 768, 1024, 1280, 1536, 1792, 2048)
TOKENS = 1024
MAX_PADDING = 0.15
_MINIMA = (64, 128, 256, 512, 1024, 2048)
_ATTENTION = 2048
"""The length of a row whose attention costs as much as everything else."""


@dataclass(frozen=True)
class Place:
    member: int
    row: int
    start: int


@dataclass(frozen=True)
class Batch:
    places: tuple[Place, ...]
    height: int
    length: int


@dataclass
class _Row:
    length: int
    used: int
    members: list[tuple[int, int]]


def bucket_length(length: int) -> int:
    """The length of the row for a sequence; beyond the table, the next multiple of 512."""
    return next((bucket for bucket in LENGTHS if length <= bucket), -(-length // 512) * 512)


def plan(lengths: Sequence[int]) -> list[Batch]:
    """Batches that cover every sequence once; a function of the lengths and their order alone."""
    plans = [_stack(_pack(lengths, minimum)) for minimum in _MINIMA]
    return min(plans, key=lambda batches: (padding(batches, lengths) > MAX_PADDING, _cost(batches)))


def padding(batches: Sequence[Batch], lengths: Sequence[int]) -> float:
    """The share of what is computed that is no token."""
    computed = sum(batch.height * batch.length for batch in batches)
    return 1 - sum(lengths) / computed


def _pack(lengths: Sequence[int], minimum: int) -> list[_Row]:
    """The longest first, each into the fullest row that has room for it."""
    rows: list[_Row] = []
    rooms: list[tuple[int, int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        size = lengths[index]
        at = bisect.bisect_left(rooms, (size, 0))
        if at < len(rooms):
            _, number = rooms.pop(at)
        else:
            number = len(rows)
            rows.append(_Row(max(minimum, bucket_length(size)), 0, []))
        row = rows[number]
        row.members.append((index, row.used))
        row.used += size
        bisect.insort(rooms, (row.length - row.used, number))
    return rows


def _stack(rows: list[_Row]) -> list[Batch]:
    """Rows of one length in batches of the full height, what is left over one by one."""
    by_length: dict[int, list[_Row]] = {}
    for row in rows:
        by_length.setdefault(row.length, []).append(row)
    batches = []
    for length in sorted(by_length):
        group = by_length[length]
        height = max(1, TOKENS // length)
        full = len(group) // height * height
        groups = [group[i : i + height] for i in range(0, full, height)]
        groups += [[row] for row in group[full:]]
        for together in groups:
            places = (
                Place(member, number, start)
                for number, row in enumerate(together)
                for member, start in row.members
            )
            batches.append(Batch(tuple(places), len(together), length))
    return batches


def _cost(batches: list[Batch]) -> float:
    shapes = {(batch.height, batch.length) for batch in batches}
    computed = sum(batch.height * batch.length * (1 + batch.length / _ATTENTION) for batch in batches)
    return computed + TOKENS / 16 * len(shapes)
