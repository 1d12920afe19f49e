"""How XLA works for this engine: on CPU unless told otherwise, with a cache on disk for what it compiled.

Small models compute in one thread, bigger ones on every core.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from termrl.engine.architecture import LlamaConfig
from termrl.engine.catalog import PACKAGED
from termrl.errors import UserError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MOST = (1 << 31) - 1


def set_up_jax(cache_dir: Path, models: Sequence[str] = ("termrl/tiny",)) -> None:
    """Call before anything is computed: the backend reads these once, when it starts."""
    # One thread: on products this small a second one only waits for the first, and where the cores are shared
    # with sandboxes every wait is a turn lost. It also keeps results independent of the number of cores.
    if all(is_small(name) for name in models):
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


def is_small(model: str) -> bool:
    """Whether a model's own config, where it is at hand, has few parameters."""
    directory = PACKAGED.get(model, Path(model).expanduser())
    try:
        config = LlamaConfig.from_hf(json.loads((directory / "config.json").read_text()))
    except (OSError, ValueError, UserError):
        return False
    return config.is_small


def _keep_freed_memory() -> None:
    """Has glibc reuse big buffers: by default every call maps its buffers anew, a third of a pass's time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _MOST)
        mallopt(_M_TRIM_THRESHOLD, _MOST)
