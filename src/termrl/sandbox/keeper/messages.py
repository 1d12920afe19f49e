"""What the keeper and its client say to each other: one marshalled dict a message, behind its length.

Both ends are the same Python on the same machine, so marshal is exact and fast, and it carries bytes.
"""

import marshal
import struct
from collections.abc import Iterator
from typing import Any, TypedDict

from .cgroups import Limits

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
    # For control groups; None where the task asks for nothing that needs one.
    limits: Limits | None
    # For rlimits, of each process: what stands in for the group where there is none.
    process_memory_mb: int | None
    # Whether there are to be other users than root, where that takes subordinate ids.
    many_ids: bool
    # Seconds after which the sandbox is ended, whoever still wants it.
    lifetime: float | None
    # The variables of the first process: whose sandbox this is.
    labels: dict[str, str]


class CommandPlan(TypedDict):
    argv: list[str]
    cwd: str
    env: dict[str, str]
    user: str | int
    pids_limit: int
    process_memory_mb: int | None
    # The processors it may run on, where cpus can't be limited by a group; empty is any.
    cpu_set: list[int]


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
