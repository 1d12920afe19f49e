"""Rows divided by their root mean square, times a weight: `x / sqrt(mean(x * x) + epsilon) * weight`.

A row's squares are summed a vector at a time, in four sums that take turns: the bits depend on the row alone.
"""

from __future__ import annotations

from llvmlite import ir

from termrl.engine.kernels.calling import Call
from termrl.engine.kernels.interface import Interface
from termrl.engine.kernels.sharing import UNIT, Sharing
from termrl.engine.kernels.writing import F32, FLOAT_BYTES, I64, POINTER, Value, Writer

_SUMS = 4
_ROWS = 32
"""Of a unit."""
_ABOUT = [POINTER] * 4 + [I64] * 2


def write_norm(module: ir.Module, interface: Interface, sharing: Sharing, lanes: int, name: str) -> None:
    """`(x [N, D], weight [D], epsilon)` gives [N, D]."""
    call = Call(module, interface, name)
    to, code = call.to, call.to.code
    x, weight, epsilon, out = call.argument(0, 2), call.argument(1, 1), call.argument(2, 0), call.result(0, 2)
    rows, size = x.sizes
    about = to.structure([x.data, weight.data, epsilon.data, out.data, rows, size])
    units = to.rounded_up(rows, to.number(_ROWS))
    sharing.write(call, _write_unit(module, lanes), about, units, code.mul(rows, size))
    call.end()


def _write_unit(module: ir.Module, lanes: int) -> ir.Function:
    to = Writer(module, "norm_unit", UNIT.return_type, UNIT.args)
    to.function.linkage = "internal"
    code = to.code
    x, weight, epsilon, out, rows, size = to.fields(to.arguments[0], _ABOUT)
    first = code.mul(to.arguments[1], to.number(_ROWS))
    end = to.smaller(code.add(first, to.number(_ROWS)), rows)
    least = to.read(epsilon, F32)
    with to.loop(end, start=first) as row:
        place = to.bytes_of(code.mul(row, size))
        source, result = to.at(x, place), to.at(out, place)
        mean = code.fdiv(to.first_of(_square_sum(to, source, size, lanes)), code.sitofp(size, F32))
        root = to.root(to.splat(code.fadd(mean, least), lanes))
        factor = code.fdiv(to.float_vector(lanes, 1.0), root)
        with to.loop(size, lanes) as i:
            mask = to.first_lanes(code.sub(size, i), lanes)
            found = code.fmul(to.read_some(to.floats_on(source, i), mask), factor)
            scaled = code.fmul(found, to.read_some(to.floats_on(weight, i), mask))
            to.write_some(scaled, to.floats_on(result, i), mask)
    code.ret_void()
    return to.function


def _square_sum(to: Writer, source: Value, size: Value, lanes: int) -> Value:
    """In every lane."""
    code = to.code
    sums = [to.variable(ir.VectorType(F32, lanes), to.float_vector(lanes)) for _ in range(_SUMS)]
    with to.loop(size, _SUMS * lanes) as i:
        left = code.sub(size, i)
        for n, total in enumerate(sums):
            mask = to.first_lanes(code.sub(left, to.number(n * lanes)), lanes)
            found = to.read_some(to.at(to.floats_on(source, i), n * lanes * FLOAT_BYTES), mask)
            total.set(to.multiply_add(found, found, total.get()))
    both = [code.fadd(sums[n].get(), sums[n + 1].get()) for n in (0, 2)]
    return to.folded(code.fadd(*both), code.fadd)
