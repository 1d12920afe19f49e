"""A function as XLA calls it: its arrays, and what it may ask XLA for.

A call gets a frame whose layout is that of XLA's foreign function interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from termrl.engine.kernels.interface import Interface
from termrl.engine.kernels.writing import I32, I64, NOTHING, POINTER, Value, Writer

# Where XLA's structures hold what is needed of them, in bytes (xla/ffi/api/c_api.h).
_FRAME_EXTENSION, _FRAME_API, _FRAME_CONTEXT, _FRAME_ARGUMENTS, _FRAME_RESULTS = 8, 16, 24, 72, 112
_BUFFER_DATA, _BUFFER_SIZES = 24, 40
_API_VERSION = 32
_EXTENSION_KIND, _EXTENSION_METADATA, _METADATA_VERSION, _METADATA_TRAITS = 8, 24, 24, 32
_METADATA_KIND = 1
_SCHEDULE_BYTES, _THREADS_BYTES = 40, 32


@dataclass(frozen=True)
class Buffer:
    """An array of XLA's, by rows."""

    data: Value
    sizes: tuple[Value, ...]


class Call:
    """Writes a function that XLA can call by its name."""

    def __init__(self, module: ir.Module, interface: Interface, name: str) -> None:
        self.to = to = Writer(module, name, POINTER, [POINTER])
        self._interface = interface
        self._frame = to.arguments[0]
        self._api = to.read(self._frame, POINTER, _FRAME_API)
        self._context = to.read(self._frame, POINTER, _FRAME_CONTEXT)
        extension = to.read(self._frame, POINTER, _FRAME_EXTENSION)
        with to.code.if_then(to.code.icmp_unsigned("!=", extension, NOTHING)):
            kind = to.read(extension, I32, _EXTENSION_KIND)
            with to.code.if_then(to.code.icmp_unsigned("==", kind, ir.Constant(I32, _METADATA_KIND))):
                # XLA asks, once, which version of its interface this is written for: the one that asks.
                metadata = to.read(extension, POINTER, _EXTENSION_METADATA)
                to.write(to.read(self._api, I64, _API_VERSION), metadata, _METADATA_VERSION)
                to.write(ir.Constant(I32, 0), metadata, _METADATA_TRAITS)
                to.code.ret(NOTHING)

    def argument(self, n: int, axes: int) -> Buffer:
        return self._buffer(_FRAME_ARGUMENTS, n, axes)

    def result(self, n: int, axes: int) -> Buffer:
        return self._buffer(_FRAME_RESULTS, n, axes)

    def end(self) -> None:
        self.to.code.ret(NOTHING)

    def thread_count(self) -> Value:
        count = self.to.variable(I64, self.to.number(1))
        place = self.to.code.bitcast(count.place, POINTER)
        self._ask(self._interface.thread_count, _THREADS_BYTES, [place])
        return count.get()

    def schedule(self, task: ir.Function, data: Value) -> None:
        """Has a thread of XLA's call a function, some time."""
        function = self.to.code.bitcast(task, POINTER)
        self._ask(self._interface.schedule, _SCHEDULE_BYTES, [function, data])

    def _buffer(self, where: int, n: int, axes: int) -> Buffer:
        to = self.to
        buffer = to.read(to.read(self._frame, POINTER, where), POINTER, 8 * n)
        sizes = to.read(buffer, POINTER, _BUFFER_SIZES)
        return Buffer(
            to.read(buffer, POINTER, _BUFFER_DATA), tuple(to.read(sizes, I64, 8 * i) for i in range(axes))
        )

    def _ask(self, offset: int, size: int, values: Sequence[Value]) -> None:
        to = self.to
        asked = to.structure([to.number(size), NOTHING, self._context, *values])
        function = to.read(self._api, ir.FunctionType(POINTER, [POINTER]).as_pointer(), offset)
        to.code.call(function, [asked])
