"""Arrays that compiled programs read, and write, where they are.

XLA reads an array of numpy's in place where it begins at a multiple of 64 bytes; any other, which is how
numpy makes big ones, it copies first: at every piece of prefill, all that stands before it. One that it is to
write as well it always copies, unless it made it itself.
"""

import ctypes
import itertools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

_ALIGNMENT = 64
_WORTH_SHARING = 8 << 20
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_copiers = ThreadPoolExecutor(_CORES, "copier")


def aligned_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Zeros in float32 that begin where XLA wants them to."""
    return _aligned(np.zeros, shape)


def aligned_empty(shape: tuple[int, ...]) -> np.ndarray:
    """The same, holding whatever: for who writes all of it."""
    return _aligned(np.empty, shape)


class Room:
    """Memory that is used over and over: mapping big arrays anew takes longer than filling them."""

    def __init__(self) -> None:
        self._held = np.empty(0, np.float32)

    def take(self, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
        """Arrays as `aligned_empty` makes them, in place of those that were taken before."""
        line = _ALIGNMENT // 4
        sizes = [-(-math.prod(shape) // line) * line for shape in shapes]
        if sum(sizes) > self._held.size:
            self._held = np.empty(0, np.float32)
            self._held = aligned_empty((sum(sizes),))
        starts = itertools.accumulate(sizes, initial=0)
        return [
            self._held[start : start + math.prod(shape)].reshape(shape)
            for start, shape in zip(starts, shapes, strict=False)
        ]


def copy_by_layer(copy: Callable[[slice], None], layers: int, size: int) -> None:
    """Has a copy of so many bytes made, where that is much by all cores, each with a run of the layers."""
    shares = min(_CORES, layers) if size >= _WORTH_SHARING else 1
    edges = [layers * n // shares for n in range(shares + 1)]
    runs = [slice(first, end) for first, end in itertools.pairwise(edges)]
    if shares == 1:
        copy(runs[0])
    else:
        list(_copiers.map(copy, runs))


def memory_of(array: jax.Array) -> np.ndarray:
    """The memory of a float32 array of XLA's on the CPU, to be written where nobody computes with it.

    It is gone with the array, or when a program that the array is given to writes its result there.
    """
    array.block_until_ready()
    raw = (ctypes.c_float * array.size).from_address(array.unsafe_buffer_pointer())
    return np.frombuffer(raw, np.float32).reshape(array.shape)


def _aligned(make: Callable[..., np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    size = math.prod(shape)
    raw = make(size + _ALIGNMENT // 4, np.float32)
    start = -raw.ctypes.data % _ALIGNMENT // 4
    return raw[start : start + size].reshape(shape)
