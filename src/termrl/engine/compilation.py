"""How XLA works for this engine: on CPU unless told otherwise, with a cache on disk for what it compiled.

Small models compute in one thread, bigger ones on every core.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from termrl.engine.architecture import LlamaConfig
from termrl.engine.catalog import PACKAGED
from termrl.engine.memory import keep_freed_memory
from termrl.engine.processor import has_wide_vectors
from termrl.errors import UserError


def set_up_jax(cache_dir: Path, models: Sequence[str] = ("termrl/tiny",)) -> None:
    """Call before anything is computed: the backend reads these once, when it starts."""
    # One thread: on products this small a second one only waits for the first, and where the cores are shared
    # with sandboxes every wait is a turn lost. It also keeps results independent of the number of cores.
    if all(is_small(name) for name in models):
        os.environ.setdefault("NPROC", "1")
    keep_freed_memory()

    import jax

    update: Callable[[str, Any], None] = jax.config.update
    if not os.environ.get("JAX_PLATFORMS"):
        update("jax_platforms", "cpu")
    update("jax_cpu_enable_async_dispatch", False)
    cache_dir.mkdir(parents=True, exist_ok=True)
    update("jax_compilation_cache_dir", str(cache_dir.absolute()))
    update("jax_persistent_cache_min_compile_time_secs", 0.0)
    update("jax_persistent_cache_min_entry_size_bytes", -1)


def sampling_options(config: LlamaConfig) -> dict[str, str] | None:
    """How the programs that sample from a model are compiled.

    Unless told, XLA uses half of AVX-512; the exponentials of a big vocabulary are twice as fast with all of
    it. In a small model nothing is long enough to gain.
    """
    return None if config.is_small or not has_wide_vectors() else {"xla_cpu_prefer_vector_width": "512"}


def is_small(model: str) -> bool:
    """Whether a model's own config, where it is at hand, has few parameters."""
    directory = PACKAGED.get(model, Path(model).expanduser())
    try:
        config = LlamaConfig.from_hf(json.loads((directory / "config.json").read_text()))
    except (OSError, ValueError, UserError):
        return False
    return config.is_small
