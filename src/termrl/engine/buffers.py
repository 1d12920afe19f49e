"""Arrays that compiled programs read where they are.

XLA takes an array of numpy's as its own where it begins at a multiple of 64 bytes; any other, which is how
numpy makes big ones, it copies first: at every piece of prefill, all that stands before it.
"""

import math
from collections.abc import Callable

import numpy as np

_ALIGNMENT = 64


def aligned_zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Zeros in float32 that begin where XLA wants them to."""
    return _aligned(np.zeros, shape)


def aligned_empty(shape: tuple[int, ...]) -> np.ndarray:
    """The same, holding whatever: for who writes all of it."""
    return _aligned(np.empty, shape)


def _aligned(make: Callable[..., np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    size = math.prod(shape)
    raw = make(size + _ALIGNMENT // 4, np.float32)
    start = -raw.ctypes.data % _ALIGNMENT // 4
    return raw[start : start + size].reshape(shape)
