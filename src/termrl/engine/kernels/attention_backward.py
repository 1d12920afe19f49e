"""The gradients of causal attention over whole sequences, float32.

Axis names are those of `attention`; T is positions, and the queries of a group are its heads one after the
other, T each. Scores are computed twice, once with queries for rows and once with keys: so everything that is
summed is summed by one core, from its first position to its last.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from termrl.engine.kernels.attention import MOST_HEAD_SIZE
from termrl.engine.kernels.calling import Call
from termrl.engine.kernels.interface import Interface
from termrl.engine.kernels.sharing import UNIT, Sharing
from termrl.engine.kernels.tiles import Matrix, Tiles, write_direct_or_packed, write_turned_packing
from termrl.engine.kernels.writing import BOOL, F32, FLOAT_BYTES, I32, I64, POINTER, Value, Writer

_BLOCK = 256
_ROWS = 64
"""Of a unit: queries, or keys."""


class _About(NamedTuple):
    q: Value
    k: Value
    v: Value
    into: Value
    sums: Value
    shared: Value
    since: Value
    until: Value
    into_q: Value
    into_k: Value
    into_v: Value
    groups: Value
    queries: Value
    size: Value
    time: Value
    units: Value
    """Of a group."""


_KINDS = [POINTER] * 11 + [I64] * 5


def write_attention_backward(
    module: ir.Module, interface: Interface, sharing: Sharing, wide: Tiles, narrow: Tiles, name: str
) -> None:
    """`(q [B, K, Q, E], k, v [B, K, T, E], into [B, K, Q, E], sums, shared [B, K, Q], since, until [B, T])`.

    A query at position t sees the keys from `since` to t; a key is seen up to the position before `until`.
    `sums` are the logarithms of the sums of queries' exponentials, `shared` the products of `into` with what
    the queries got. Gives the gradients of q, k and v.
    """
    call = Call(module, interface, name)
    to, code = call.to, call.to.code
    q, k, v, into = (call.argument(n, 4) for n in range(4))
    others = [call.argument(4, 3), call.argument(5, 3), call.argument(6, 2), call.argument(7, 2)]
    others += [call.result(n, 4) for n in range(3)]
    rows, groups, queries, size = q.sizes
    time = k.sizes[2]
    work = code.mul(code.mul(code.mul(rows, groups), queries), code.mul(size, time))
    parts = {"queries": (queries, _write_query_unit), "keys": (time, _write_key_unit)}
    for part, (count, write_unit) in parts.items():
        unit = Writer(module, f"attention_backward_{part}", UNIT.return_type, UNIT.args)
        unit.function.linkage = "internal"
        write_unit(unit, wide, narrow)
        units = to.rounded_up(count, to.number(_ROWS))
        buffers = [buffer.data for buffer in (q, k, v, into, *others)]
        about = to.structure([*buffers, groups, queries, size, time, units])
        sharing.write(call, unit.function, about, code.mul(code.mul(rows, groups), units), work)
    call.end()


class _Unit:
    """Writes what is computed for a unit's rows."""

    def __init__(self, to: Writer, wide: Tiles, narrow: Tiles, *, of_queries: bool) -> None:
        self.to, self._wide, self._narrow = to, wide, narrow
        self.about = about = _About(*to.fields(to.arguments[0], _KINDS))
        code = to.code
        self.group = code.sdiv(to.arguments[1], about.units)
        self.row = code.sdiv(self.group, about.groups)
        self.first = code.mul(code.srem(to.arguments[1], about.units), to.number(_ROWS))
        of_all = about.queries if of_queries else about.time
        self.count = to.smaller(code.sub(of_all, self.first), to.number(_ROWS))
        stride = _BLOCK + wide.tile.columns
        self.stride = to.number(stride * FLOAT_BYTES)
        self.scores, self.products = to.room(_ROWS * stride), to.room(_ROWS * stride)
        self._packed = to.room(max(MOST_HEAD_SIZE, _BLOCK) * wide.tile.columns)
        self.limits = code.mul(code.mul(self.row, about.time), to.number(4))
        """Where its row's `since` and `until` are."""

    def rows(self, data: Value, count: Value, first: Value) -> Matrix:
        """Of a group's queries or keys, which are so many, from one on."""
        place = self.to.code.add(self.to.code.mul(self.group, count), first)
        row = self.to.bytes_of(self.about.size)
        return Matrix(self.to.at(data, self.to.code.mul(place, row)), row)

    def write_scores(self, x: Matrix, turned: Matrix, width: Value, scores: Value) -> None:
        """The products of the unit's rows with so many others."""
        to, code, tile = self.to, self.to.code, self._wide.tile
        with to.loop(width, tile.columns) as c:
            source = Matrix(to.at(turned.data, code.mul(c, turned.row)), turned.row)
            columns = to.smaller(code.sub(width, c), to.number(tile.columns))
            panel = write_turned_packing(to, tile, source, self.about.size, columns, self._packed)
            self._wide.write_rows(
                to,
                x,
                panel,
                Matrix(to.floats_on(scores, c), self.stride),
                depth=self.about.size,
                columns=to.number(tile.columns),
                rows=(to.number(0), self.count),
                goes_on=ir.Constant(BOOL, 0),
            )

    def write_mix(self, weights: Value, source: Matrix, width: Value, out: Matrix) -> None:
        """Adds so many rows of the source, weighed."""
        left = self.to.code.srem(self.about.size, self.to.number(self._wide.tile.columns))
        fits = self.to.code.icmp_signed("==", left, self.to.number(0))
        with self.to.code.if_else(fits) as (then, otherwise):
            with then:
                self._write_mix(self._wide, weights, source, width, out)
            with otherwise:
                self._write_mix(self._narrow, weights, source, width, out)

    def _write_mix(self, tiles: Tiles, weights: Value, source: Matrix, width: Value, out: Matrix) -> None:
        to, code, tile = self.to, self.to.code, tiles.tile
        with to.loop(self.about.size, tile.columns) as c:
            columns = to.smaller(code.sub(self.about.size, c), to.number(tile.columns))
            is_whole = code.icmp_signed("==", columns, to.number(tile.columns))
            part = Matrix(to.floats_on(source.data, c), source.row)
            panel = write_direct_or_packed(to, tile, is_whole, part, width, columns, self._packed)
            tiles.write_rows(
                to,
                Matrix(weights, self.stride),
                panel,
                Matrix(to.floats_on(out.data, c), out.row),
                depth=width,
                columns=columns,
                rows=(to.number(0), self.count),
                goes_on=ir.Constant(BOOL, 1),
            )

    def write_gradient(
        self, i: Value, s: Value, mask: Value, log_sum: Value, shared: Value
    ) -> tuple[Value, Value]:
        """The weights of some lanes of a row and the gradients of their scores."""
        to, code = self.to, self.to.code
        offset = code.add(code.mul(i, self.stride), to.bytes_of(s))
        none = to.float_vector(log_sum.type.count)
        score = to.read(self.scores, log_sum.type, offset)
        weight = code.select(mask, to.exponential(code.fsub(score, log_sum)), none)
        into = code.fsub(to.read(self.products, log_sum.type, offset), shared)
        return weight, code.select(mask, code.fmul(weight, into), none)


def _write_query_unit(to: Writer, wide: Tiles, narrow: Tiles) -> None:
    """The gradients of some queries of a group."""
    unit = _Unit(to, wide, narrow, of_queries=True)
    code, about, lanes = to.code, unit.about, wide.tile.lanes
    since = to.at(about.since, unit.limits)
    out = unit.rows(about.into_q, about.queries, unit.first)
    to.zero(out.data, code.mul(unit.count, out.row))

    def position(i: Value) -> Value:
        return code.srem(code.add(unit.first, i), about.time)

    most, least = to.variable(I64, to.number(0)), to.variable(I64, about.time)
    with to.loop(unit.count) as i:
        most.set(to.bigger(most.get(), code.add(position(i), to.number(1))))
        least.set(to.smaller(least.get(), _integer(to, since, position(i))))
    begin = code.sub(least.get(), code.srem(least.get(), to.number(_BLOCK)))
    with to.loop(most.get(), _BLOCK, begin) as at:
        width = to.smaller(code.sub(most.get(), at), to.number(_BLOCK))
        keys, values = unit.rows(about.k, about.time, at), unit.rows(about.v, about.time, at)
        unit.write_scores(unit.rows(about.q, about.queries, unit.first), keys, width, unit.scores)
        unit.write_scores(unit.rows(about.into, about.queries, unit.first), values, width, unit.products)
        with to.loop(unit.count) as i:
            place = code.add(code.mul(unit.group, about.queries), code.add(unit.first, i))
            log_sum = to.splat(to.read(to.floats_on(about.sums, place), F32), lanes)
            shared = to.splat(to.read(to.floats_on(about.shared, place), F32), lanes)
            t = position(i)
            hidden = code.sub(_integer(to, since, t), at)
            seen = to.smaller(code.sub(code.add(t, to.number(1)), at), width)
            with to.loop(width, lanes) as s:
                mask = to.lanes_between(code.sub(hidden, s), code.sub(seen, s), lanes)
                _, gradient = unit.write_gradient(i, s, mask, log_sum, shared)
                to.write(gradient, unit.scores, code.add(code.mul(i, unit.stride), to.bytes_of(s)))
        unit.write_mix(unit.scores, keys, width, out)
    code.ret_void()


def _write_key_unit(to: Writer, wide: Tiles, narrow: Tiles) -> None:
    """The gradients of some keys and values of a group."""
    unit = _Unit(to, wide, narrow, of_queries=False)
    code, about, lanes = to.code, unit.about, wide.tile.lanes
    since, until = to.at(about.since, unit.limits), to.at(about.until, unit.limits)
    into_k, into_v = (unit.rows(data, about.time, unit.first) for data in (about.into_k, about.into_v))
    for out in (into_k, into_v):
        to.zero(out.data, code.mul(unit.count, out.row))
    end = to.variable(I64, to.number(0))
    with to.loop(unit.count) as i:
        end.set(to.bigger(end.get(), _integer(to, until, code.add(unit.first, i))))
    keys, values = (unit.rows(data, about.time, unit.first) for data in (about.k, about.v))
    with to.loop(code.sdiv(about.queries, about.time)) as head, to.loop(end.get(), _BLOCK, unit.first) as at:
        width = to.smaller(code.sub(end.get(), at), to.number(_BLOCK))
        first = code.add(code.mul(head, about.time), at)
        queries, into = (unit.rows(data, about.queries, first) for data in (about.q, about.into))
        unit.write_scores(keys, queries, width, unit.scores)
        unit.write_scores(values, into, width, unit.products)
        place = code.add(code.mul(unit.group, about.queries), first)
        with to.loop(width, lanes) as s:
            there = to.first_lanes(code.sub(width, s), lanes)
            log_sum = to.read_some(to.floats_on(about.sums, code.add(place, s)), there)
            shared = to.read_some(to.floats_on(about.shared, code.add(place, s)), there)
            whole = ir.VectorType(I32, lanes)
            begun = to.read_some(to.floats_on(since, code.add(at, s)), there)
            begun = code.bitcast(begun, whole)
            with to.loop(unit.count) as i:
                key = code.add(unit.first, i)
                later = to.lanes_between(code.sub(code.sub(key, at), s), code.sub(width, s), lanes)
                key_lanes = to.splat(code.trunc(key, I32), lanes)
                mask = code.and_(later, code.icmp_signed("<=", begun, key_lanes))
                weight, gradient = unit.write_gradient(i, s, mask, log_sum, shared)
                offset = code.add(code.mul(i, unit.stride), to.bytes_of(s))
                to.write(weight, unit.scores, offset)
                to.write(gradient, unit.products, offset)
        unit.write_mix(unit.scores, into, width, into_v)
        unit.write_mix(unit.products, queries, width, into_k)
    code.ret_void()


def _integer(to: Writer, data: Value, i: Value) -> Value:
    return to.code.sext(to.read(data, I32, to.code.mul(i, to.number(4))), I64)
