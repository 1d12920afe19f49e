"""The first process of a sandbox: a program of a hundred bytes that waits for ever.

It needs no loader and no library, so it runs on any root file system, takes a page of memory, and starts at
once. What it adopts is reaped by the kernel (SIGCHLD stays ignored across exec).
"""

import platform
import struct

INIT = "/opt/termrl/init"

_MACHINES = {
    # pause() in a loop: mov eax, 34; syscall; jmp back
    "x86_64": (62, bytes.fromhex("b8220000000f05ebf7")),
    # ppoll(0, 0, 0, 0) in a loop: mov x0..x3, 0; mov x8, 73; svc 0; b back
    "aarch64": (
        183,
        struct.pack(
            "<7I", 0xD2800000, 0xD2800001, 0xD2800002, 0xD2800003, 0xD2800928, 0xD4000001, 0x17FFFFFA
        ),
    ),
}
_BASE, _HEADERS = 0x400000, 64 + 56


def init_program(machine: str | None = None) -> bytes:
    """The program as an ELF file for this machine's processor."""
    name = machine or platform.machine()
    if name not in _MACHINES:
        raise OSError(38, f"the local sandbox is not ported to {name}")
    number, code = _MACHINES[name]
    identity = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    entry, size = _BASE + _HEADERS, _HEADERS + len(code)
    header = struct.pack("<HHIQQQIHHHHHH", 2, number, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return identity + header + segment + code
