"""Where XLA's foreign function interface has the calls that share work among its threads.

The header that comes with XLA says it. Structures of major version 0 are otherwise laid out as `calling` has
them, from jaxlib 0.6 on; its list of calls has had one put into the middle without a new number.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import jax

_MAJOR = 0
_CALLS_BEGIN = 48
"""In bytes: the list comes behind a size, a pointer, a version and a pointer."""


@dataclass(frozen=True)
class Interface:
    """Of what lies where in its list of calls, in bytes."""

    schedule: int
    thread_count: int


@functools.cache
def installed_interface() -> Interface | None:
    """None where it is not one that is known."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        return read_interface(header.read_text())
    except OSError:
        return None


def read_interface(header: str) -> Interface | None:
    major = re.search(r"^#define XLA_FFI_API_MAJOR (\d+)$", header, re.MULTILINE)
    calls = re.findall(r"^ *_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\);", header, re.MULTILINE)
    needed = ("ThreadPool_Schedule", "ThreadPool_NumThreads")
    if major is None or int(major[1]) != _MAJOR or any(name not in calls for name in needed):
        return None
    return Interface(*(_CALLS_BEGIN + 8 * calls.index(name) for name in needed))
