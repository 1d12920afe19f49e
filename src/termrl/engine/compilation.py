"""How XLA compiles for this engine: on CPU, with a cache on disk that makes the next start a warm one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def set_up_jax(cache_dir: Path) -> None:
    """Call before anything is computed: the backend reads these once, when it starts."""
    import jax

    update: Callable[[str, Any], None] = jax.config.update

    if not os.environ.get("JAX_PLATFORMS"):
        update("jax_platforms", "cpu")
    cache_dir.mkdir(parents=True, exist_ok=True)
    update("jax_compilation_cache_dir", str(cache_dir.absolute()))
    update("jax_persistent_cache_min_compile_time_secs", 0.0)
    update("jax_persistent_cache_min_entry_size_bytes", -1)
