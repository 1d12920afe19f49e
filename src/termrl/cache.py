"""Where things are kept that can be made again: built-in tasks, sandbox layers, compiled programs."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """`termrl` in the user's cache directory."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification asks for relative values to be ignored.
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "termrl"
