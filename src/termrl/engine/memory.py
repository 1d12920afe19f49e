"""What glibc does with memory that was freed. Where the C library is another one, nothing."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MOST = (1 << 31) - 1
_GIANT = 1 << 30
"""From here on buffers are mapped anew and given back whole: kept, they leave holes that others lie in."""


def keep_freed_memory() -> None:
    """Has big buffers reused: by default every call maps its buffers anew, a third of a pass's time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _GIANT)
        mallopt(_M_TRIM_THRESHOLD, _MOST)


def give_back_freed_memory() -> None:
    """For when the next work is of another kind: what the last one took goes back to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
