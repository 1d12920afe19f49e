"""What the keeper and its client say to each other: one marshalled dict a message, behind its length.

Both ends are the same Python on the same machine, so marshal is exact and fast, and it carries bytes.
"""

import marshal
import struct
from collections.abc import Iterator
from typing import Any, TypedDict

LENGTH = struct.Struct("<Q")


class Bind(TypedDict):
    source: str
    target: str
    read_only: bool


class BootPlan(TypedDict):
    """Everything a sandbox is made from. Paths in `lowers` are relative to `layers_dir`, top first."""

    layers_dir: str
    lowers: list[str]
    # Where in `layers_dir` changes are kept; None keeps them in memory, gone with the sandbox.
    keep_in: str | None
    overlay: bool
    binds: list[Bind]
    directories: list[str]
    files: dict[str, bytes]
    hostname: str
    network: bool
    storage_mb: int
    pids_limit: int


class CommandPlan(TypedDict):
    argv: list[str]
    cwd: str
    env: dict[str, str]
    user: str | int
    pids_limit: int


def encode(message: dict[str, Any]) -> bytes:
    body = marshal.dumps(message)
    return LENGTH.pack(len(body)) + body


def decode(buffer: bytearray) -> Iterator[dict[str, Any]]:
    """Take every whole message off the front of `buffer`."""
    while len(buffer) >= LENGTH.size:
        (length,) = LENGTH.unpack_from(buffer)
        end = LENGTH.size + length
        if len(buffer) < end:
            return
        body = bytes(memoryview(buffer)[LENGTH.size : end])
        del buffer[:end]
        yield marshal.loads(body)
