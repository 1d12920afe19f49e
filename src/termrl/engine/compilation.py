"""How XLA works for this engine: on CPU, in one thread, with a cache on disk for what it compiled."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def set_up_jax(cache_dir: Path) -> None:
    """Call before anything is computed: the backend reads these once, when it starts."""
    # One thread: on products this small a second one only waits for the first, and where the cores are shared
    # with sandboxes every wait is a turn lost. It also keeps results independent of the number of cores.
    os.environ.setdefault("NPROC", "1")
    _keep_freed_memory()

    import jax

    update: Callable[[str, Any], None] = jax.config.update
    if not os.environ.get("JAX_PLATFORMS"):
        update("jax_platforms", "cpu")
    update("jax_cpu_enable_async_dispatch", False)
    cache_dir.mkdir(parents=True, exist_ok=True)
    update("jax_compilation_cache_dir", str(cache_dir.absolute()))
    update("jax_persistent_cache_min_compile_time_secs", 0.0)
    update("jax_persistent_cache_min_entry_size_bytes", -1)


def _keep_freed_memory() -> None:
    """Has glibc reuse big buffers: by default every call maps its buffers anew, a third of a pass's time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
