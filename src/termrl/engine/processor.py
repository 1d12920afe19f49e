"""What the engine has to know of the processor it computes on."""

from __future__ import annotations

import functools
import re
from pathlib import Path


@functools.cache
def has_wide_vectors() -> bool:
    """Whether it is an x86 with AVX-512; False where that can't be told."""
    try:
        described = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return re.search(r"^flags\s*:.*\bavx512f\b", described, re.MULTILINE) is not None
