"""LLVM's intermediate code, written a little closer to what it means.

Pointers are to bytes; numbers are i64 unless said. Variables live on the stack until LLVM moves them into
registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

BYTE, I32, I64, F32, BOOL = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.IntType(1)
POINTER = BYTE.as_pointer()
NOTHING = ir.Constant(POINTER, None)
FLOAT_BYTES = 4
LINE = 64
"""Of a core's caches, in bytes."""
Value = Any
"""Of LLVM: a constant, an argument or what an instruction gives."""


class Variable:
    def __init__(self, writer: Writer, kind: Any) -> None:
        self._writer = writer
        with writer.code.goto_entry_block():
            self.place = writer.code.alloca(kind)

    def get(self) -> Value:
        return self._writer.code.load(self.place)

    def set(self, value: Value) -> None:
        self._writer.code.store(value, self.place)


class Writer:
    """Writes one function."""

    def __init__(self, module: ir.Module, name: str, result: Any, arguments: Sequence[Any]) -> None:
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(result, arguments), name)
        self.code = ir.IRBuilder(self.function.append_basic_block())

    @property
    def arguments(self) -> Any:
        return self.function.args

    def number(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def variable(self, kind: Any, value: Value | None = None) -> Variable:
        made = Variable(self, kind)
        if value is not None:
            made.set(value)
        return made

    @contextmanager
    def loop(self, end: Value, step: int = 1, start: Value | int = 0) -> Iterator[Value]:
        """The body of `for i in range(start, end, step)`."""
        at = self.variable(I64, self.number(start) if isinstance(start, int) else start)
        head, body, after = (self.function.append_basic_block() for _ in range(3))
        self.code.branch(head)
        self.code.position_at_end(head)
        i = at.get()
        self.code.cbranch(self.code.icmp_signed("<", i, end), body, after)
        self.code.position_at_end(body)
        yield i
        at.set(self.code.add(i, self.number(step)))
        self.code.branch(head)
        self.code.position_at_end(after)

    @contextmanager
    def forever(self) -> Iterator[Any]:
        """A loop's body, given the block that its end is to branch to."""
        head, after = self.function.append_basic_block(), self.function.append_basic_block()
        self.code.branch(head)
        self.code.position_at_end(head)
        yield after
        self.code.branch(head)
        self.code.position_at_end(after)

    def leave_if(self, condition: Value, after: Any) -> None:
        on = self.function.append_basic_block()
        self.code.cbranch(condition, after, on)
        self.code.position_at_end(on)

    def is_less(self, a: Value, b: Value) -> Value:
        return self.code.icmp_signed("<", a, b)

    def smaller(self, a: Value, b: Value) -> Value:
        return self.code.select(self.is_less(a, b), a, b)

    def bigger(self, a: Value, b: Value) -> Value:
        return self.code.select(self.is_less(a, b), b, a)

    def rounded_up(self, count: Value, size: Value) -> Value:
        """How many of a size are needed for a count."""
        return self.code.sdiv(self.code.add(count, self.code.sub(size, self.number(1))), size)

    def room(self, floats: int) -> Value:
        """Of the stack."""
        with self.code.goto_entry_block():
            made = self.code.alloca(ir.ArrayType(F32, floats))
            made.align = LINE
            return self.code.bitcast(made, POINTER)

    def structure(self, fields: Sequence[Value]) -> Value:
        """One on the stack, eight bytes a field."""
        with self.code.goto_entry_block():
            made = self.code.alloca(ir.ArrayType(I64, len(fields)))
        start = self.code.bitcast(made, POINTER)
        for n, value in enumerate(fields):
            self.write(value, start, 8 * n)
        return start

    def fields(self, structure: Value, kinds: Sequence[Any]) -> list[Value]:
        """What one holds."""
        return [self.read(structure, kind, 8 * n) for n, kind in enumerate(kinds)]

    def at(self, pointer: Value, offset: Value | int) -> Value:
        """A pointer so many bytes on."""
        return self.code.gep(pointer, [self.number(offset) if isinstance(offset, int) else offset])

    def floats_on(self, pointer: Value, count: Value) -> Value:
        return self.at(pointer, self.bytes_of(count))

    def bytes_of(self, floats: Value) -> Value:
        return self.code.mul(floats, self.number(FLOAT_BYTES))

    def read(self, pointer: Value, kind: Any, offset: Value | int = 0) -> Value:
        return self.code.load(self.code.bitcast(self.at(pointer, offset), kind.as_pointer()), align=4)

    def write(self, value: Value, pointer: Value, offset: Value | int = 0) -> None:
        place = self.code.bitcast(self.at(pointer, offset), value.type.as_pointer())
        self.code.store(value, place, align=4)

    def zero(self, pointer: Value, size: Value) -> None:
        """So many bytes."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, BYTE, I64, BOOL])
        fill = self.outside("llvm.memset.p0.i64", kind)
        self.code.call(fill, [pointer, ir.Constant(BYTE, 0), size, ir.Constant(BOOL, 0)])

    def float_vector(self, lanes: int, value: float = 0.0) -> Value:
        return ir.Constant(ir.VectorType(F32, lanes), [value] * lanes)

    def splat(self, value: Value, lanes: int) -> Value:
        vector = ir.VectorType(value.type, lanes)
        one = self.code.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(I32, 0))
        zeros = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return self.code.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)

    def first_of(self, vector: Value) -> Value:
        return self.code.extract_element(vector, ir.Constant(I32, 0))

    def folded(self, vector: Value, join: Callable[[Value, Value], Value]) -> Value:
        """All lanes joined into each, by halves."""
        lanes = vector.type.count
        kind = ir.VectorType(I32, lanes)
        width = lanes // 2
        while width:
            turned = ir.Constant(kind, [lane ^ width for lane in range(lanes)])
            vector = join(vector, self.code.shuffle_vector(vector, vector, turned))
            width //= 2
        return vector

    def first_lanes(self, count: Value, lanes: int) -> Value:
        """A mask of the first `count` lanes."""
        places = ir.Constant(ir.VectorType(I64, lanes), list(range(lanes)))
        return self.is_less(places, self.splat(count, lanes))

    def lanes_between(self, first: Value, end: Value, lanes: int) -> Value:
        """A mask of the lanes from one on and before another."""
        return self.code.and_(self.code.not_(self.first_lanes(first, lanes)), self.first_lanes(end, lanes))

    def read_some(self, pointer: Value, mask: Value) -> Value:
        """The floats under a mask, zeros beside them."""
        vector = ir.VectorType(F32, mask.type.count)
        name = f"llvm.masked.load.v{mask.type.count}f32.p0"
        kind = ir.FunctionType(vector, [vector.as_pointer(), I32, mask.type, vector])
        place = self.code.bitcast(pointer, vector.as_pointer())
        return self.code.call(
            self.outside(name, kind), [place, ir.Constant(I32, 4), mask, ir.Constant(vector, None)]
        )

    def write_some(self, value: Value, pointer: Value, mask: Value) -> None:
        name = f"llvm.masked.store.v{mask.type.count}f32.p0"
        kind = ir.FunctionType(ir.VoidType(), [value.type, value.type.as_pointer(), I32, mask.type])
        place = self.code.bitcast(pointer, value.type.as_pointer())
        self.code.call(self.outside(name, kind), [value, place, ir.Constant(I32, 4), mask])

    def prefetch(self, pointer: Value) -> None:
        """Into the second cache."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
        for_reading, second, data = ir.Constant(I32, 0), ir.Constant(I32, 2), ir.Constant(I32, 1)
        self.code.call(self.outside("llvm.prefetch.p0", kind), [pointer, for_reading, second, data])

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        return self._of_vectors("fma", a, b, c)

    def root(self, x: Value) -> Value:
        return self._of_vectors("sqrt", x)

    def greater(self, a: Value, b: Value) -> Value:
        return self.code.select(self.code.fcmp_ordered(">", a, b), a, b)

    def exponential(self, x: Value) -> Value:
        """Of numbers not above zero, to the last bit but one; zero below -87.

        Two to a whole power, which is put together as a number's exponent, times Taylor's series to the
        seventh power of what is left, which is at most 0.35.
        """
        lanes = x.type.count
        whole = ir.VectorType(I32, lanes)
        power = self._of_vectors("rint", self.code.fmul(x, self.float_vector(lanes, 1.4426950408889634)))
        # The logarithm of two in two parts, the first of which has zeros at its end.
        left = self.multiply_add(power, self.float_vector(lanes, -0.693359375), x)
        left = self.multiply_add(power, self.float_vector(lanes, 0.00021219444005469057), left)
        total = self.float_vector(lanes, 1 / 5040)
        for divisor in (720, 120, 24, 6, 2, 1, 1):
            total = self.multiply_add(total, left, self.float_vector(lanes, 1 / divisor))
        exponent = self.code.add(self.code.fptosi(power, whole), ir.Constant(whole, [127] * lanes))
        bits = self.code.shl(exponent, ir.Constant(whole, [23] * lanes))
        made = self.code.fmul(total, self.code.bitcast(bits, x.type))
        none = self.float_vector(lanes)
        return self.code.select(self.code.fcmp_ordered("<", x, self.float_vector(lanes, -87.0)), none, made)

    def _of_vectors(self, name: str, *values: Value) -> Value:
        kind = values[0].type
        function = self.outside(f"llvm.{name}.v{kind.count}f32", ir.FunctionType(kind, [kind] * len(values)))
        return self.code.call(function, values)

    def outside(self, name: str, kind: Any) -> Any:
        """A function that LLVM or the C library has."""
        if name in self.module.globals:
            return self.module.globals[name]
        return ir.Function(self.module, kind, name)
