"""Attention of new positions over a cache and themselves: softmax(q k) v in float32, a block at a time.

Axis names are those of `decoding`: B rows, K groups, Q queries of a group, E head size, S cache positions, N
new positions. What a query gets is a running sum over blocks of positions from the first on, with its running
maximum taken out. Blocks take no notice of where the cache ends and the new positions begin: the bits depend
on the query and what it sees, not on how much of that was there before.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from termrl.engine.kernels.calling import Call
from termrl.engine.kernels.interface import Interface
from termrl.engine.kernels.sharing import UNIT, Sharing
from termrl.engine.kernels.tiles import Matrix, Tiles, write_direct_or_packed, write_packing
from termrl.engine.kernels.writing import BOOL, F32, FLOAT_BYTES, I32, I64, POINTER, Value, Variable, Writer

MOST_HEAD_SIZE = 256
_BLOCK = 256
"""Positions whose scores are held at once."""
_ROWS = 64
"""Queries of a unit: enough to be worth the packing of keys, few enough for cores to share evenly."""
_FEW = 8
"""Queries up to which keys are not worth packing: they are read where they are, in long rows."""
_UNSEEN = -1e30
_ABOUT = [POINTER] * 11 + [I64] * 7


class AttentionTiles(NamedTuple):
    """`wide` ones for scores and values; `long` for the scores of few queries, `narrow` for small heads."""

    wide: Tiles
    long: Tiles
    narrow: Tiles


class _About(NamedTuple):
    q: Value
    keys: Value
    values: Value
    new_keys: Value
    new_values: Value
    seen: Value
    own: Value
    since: Value
    out: Value
    tops: Value
    totals: Value
    groups: Value
    all_groups: Value
    """Of all rows."""
    queries: Value
    size: Value
    positions: Value
    new_positions: Value
    units: Value
    """Of a group."""


class _Part(NamedTuple):
    """Of a block: positions of the cache, or new ones."""

    keys: Value
    """[E, stride] and, of the values, [stride, E]."""
    values: Value
    stride: Value
    first: Value
    width: Value
    place: Value
    """Where in the block it begins."""


def write_attention(
    module: ir.Module, interface: Interface, sharing: Sharing, tiles: AttentionTiles, name: str
) -> None:
    """`(q [B, K, Q, E], keys [B, K, E, S], values [B, K, S, E], new keys, new values, seen, own, since)`.

    A query sees the first `seen` [B] positions of its row's cache and the first `own` [B, Q] of the new ones,
    but none before `since` [B, Q], which is among them; where `own` is nothing it gets zeros. Gives that,
    [B, K, Q, E], and the greatest of its scores and the sum of their exponentials with that taken out,
    [B, K, Q] each, which mean nothing where `own` is nothing.
    """
    call = Call(module, interface, name)
    to, code = call.to, call.to.code
    q, keys, values, new_keys, new_values = (call.argument(n, 4) for n in range(5))
    others = [call.argument(5, 1), call.argument(6, 2), call.argument(7, 2)]
    others += [call.result(0, 4), call.result(1, 3), call.result(2, 3)]
    rows, groups, queries, size = q.sizes
    positions, new_positions = keys.sizes[3], new_keys.sizes[3]
    units = to.rounded_up(queries, to.number(_ROWS))
    buffers = [buffer.data for buffer in (q, keys, values, new_keys, new_values, *others)]
    sizes = [groups, code.mul(rows, groups), queries, size, positions, new_positions, units]
    about = to.structure([*buffers, *sizes])
    seen_at_most = code.mul(code.add(positions, new_positions), to.number(2))
    work = code.mul(code.mul(code.mul(rows, groups), seen_at_most), code.mul(queries, size))
    unit = _write_unit(module, tiles)
    sharing.write(call, unit, about, code.mul(code.mul(rows, groups), units), work)
    call.end()


def _write_unit(module: ir.Module, tiles: AttentionTiles) -> ir.Function:
    """Some queries of a group."""
    to = Writer(module, "attention_unit", UNIT.return_type, UNIT.args)
    to.function.linkage = "internal"
    code = to.code
    about = _About(*to.fields(to.arguments[0], _ABOUT))
    group = code.sdiv(to.arguments[1], about.units)
    row = code.sdiv(group, about.groups)
    first = code.mul(code.srem(to.arguments[1], about.units), to.number(_ROWS))
    count = to.smaller(code.sub(about.queries, first), to.number(_ROWS))
    is_last = code.icmp_signed("==", code.add(group, to.number(1)), about.all_groups)
    unit = _Unit(to, tiles, about, code.add(code.mul(group, about.queries), first), count, is_last)
    limits = code.mul(code.add(code.mul(row, about.queries), first), to.number(4))
    own, since = to.at(about.own, limits), to.at(about.since, limits)
    most, least = to.variable(I64, to.number(0)), to.variable(I64, to.number(1 << 40))
    with to.loop(count) as i:
        most.set(to.bigger(most.get(), _limit(to, own, i)))
        least.set(to.smaller(least.get(), _limit(to, since, i)))
    with code.if_else(to.is_less(to.number(0), most.get())) as (some_see, none_sees):
        with none_sees:
            to.zero(unit.out.data, code.mul(count, unit.out.row))
        with some_see:
            seen = to.smaller(_limit(to, about.seen, row), about.positions)
            end = code.add(seen, to.smaller(most.get(), about.new_positions))
            begin = code.sub(least.get(), code.srem(least.get(), to.number(_BLOCK)))
            _write_blocks(unit, about, group, seen, own, since, begin, end)
    code.ret_void()
    return to.function


def _write_blocks(
    unit: _Unit,
    about: _About,
    group: Value,
    seen: Value,
    own: Value,
    since: Value,
    begin: Value,
    end: Value,
) -> None:
    to, code = unit.to, unit.to.code
    cached = code.mul(code.mul(group, about.size), about.positions)
    fresh = code.mul(code.mul(group, about.size), about.new_positions)
    with to.loop(end, _BLOCK, begin) as at:
        width = to.smaller(code.sub(end, at), to.number(_BLOCK))
        held = to.smaller(to.bigger(code.sub(seen, at), to.number(0)), width)
        past = _Part(
            to.floats_on(about.keys, cached),
            to.floats_on(about.values, cached),
            about.positions,
            first=at,
            width=held,
            place=to.number(0),
        )
        new = _Part(
            to.floats_on(about.new_keys, fresh),
            to.floats_on(about.new_values, fresh),
            about.new_positions,
            first=to.bigger(code.sub(at, seen), to.number(0)),
            width=code.sub(width, held),
            place=held,
        )
        is_first = code.icmp_signed("==", at, begin)
        for part in (past, new):
            unit.write_scores(part)
        unit.write_weights(own, code.sub(seen, at), since, at, width, is_first)
        unit.write_mix(past, is_first)
        nothing_held = code.icmp_signed("==", held, to.number(0))
        unit.write_mix(new, code.and_(is_first, nothing_held))
    unit.write_division(own)


def _limit(to: Writer, limits: Value, i: Value) -> Value:
    return to.code.sext(to.read(limits, I32, to.code.mul(i, to.number(4))), I64)


class _Unit:
    """Writes what is computed for a unit's queries."""

    def __init__(
        self,
        to: Writer,
        tiles: AttentionTiles,
        about: _About,
        first: Value,
        count: Value,
        is_last: Value,
    ) -> None:
        """From the `first` of all queries on; `is_last` says that memory may end behind its group's keys."""
        self.to, self._tiles, self._size, self._count = to, tiles, about.size, count
        self._few = to.is_less(count, to.number(_FEW + 1))
        self._is_last = is_last
        self._lanes = tiles.wide.tile.lanes
        widest = max(each.tile.columns for each in tiles)
        row = to.bytes_of(about.size)
        start = to.code.mul(first, row)
        self._q, self.out = Matrix(to.at(about.q, start), row), Matrix(to.at(about.out, start), row)
        # A panel may reach over the end of a block.
        stride = _BLOCK + widest
        self._scores = Matrix(to.room(_ROWS * stride), to.number(stride * FLOAT_BYTES))
        self._packed = to.room(max(MOST_HEAD_SIZE, _BLOCK) * widest)
        self._tops, self._totals = to.floats_on(about.tops, first), to.floats_on(about.totals, first)
        with to.loop(count) as i:
            to.write(ir.Constant(F32, _UNSEEN), to.floats_on(self._tops, i))
            to.write(ir.Constant(F32, 0.0), to.floats_on(self._totals, i))

    def write_division(self, own: Value) -> None:
        """By the sum of a query's weights; one that sees nothing gets nothing."""
        to, code = self.to, self.to.code
        with to.loop(self._count) as i:
            share = code.fdiv(ir.Constant(F32, 1.0), to.read(to.floats_on(self._totals, i), F32))
            sees = to.is_less(to.number(0), _limit(to, own, i))
            self._write_scaling(i, code.select(sees, share, ir.Constant(F32, 0.0)))

    def write_scores(self, part: _Part) -> None:
        with self.to.code.if_else(self._few) as (then, otherwise):
            with then:
                self._write_scores(self._tiles.long, part, packs=False)
            with otherwise:
                self._write_scores(self._tiles.wide, part, packs=True)

    def _write_scores(self, tiles: Tiles, part: _Part, *, packs: bool) -> None:
        """In panels of keys. One may reach over the end of its part: what comes of that is written over."""
        to, code, tile = self.to, self.to.code, tiles.tile
        row = to.bytes_of(part.stride)
        block = code.mul(self._size, part.stride)
        with to.loop(part.width, tile.columns) as c:
            first = code.add(part.first, c)
            source = Matrix(to.floats_on(part.keys, first), row)
            there = code.sub(part.stride, first)
            columns = to.smaller(there, to.number(tile.columns))
            if packs:
                panel = write_packing(to, tile, source, self._size, columns, self._packed)
            else:
                is_whole = to.is_less(to.number(tile.columns - 1), there)
                is_backed = code.and_(code.not_(self._is_last), to.is_less(to.number(tile.columns), block))
                panel = write_direct_or_packed(
                    to, tile, code.or_(is_whole, is_backed), source, self._size, columns, self._packed
                )
            scores = Matrix(to.floats_on(self._scores.data, code.add(part.place, c)), self._scores.row)
            # What the next group will read.
            ahead = None if packs else Matrix(to.floats_on(source.data, block), row)
            tiles.write_rows(
                to,
                self._q,
                panel,
                scores,
                depth=self._size,
                columns=to.number(tile.columns),
                rows=(to.number(0), self._count),
                goes_on=ir.Constant(BOOL, 0),
                ahead=ahead,
            )

    def write_weights(
        self, own: Value, before: Value, since: Value, at: Value, width: Value, is_first: Value
    ) -> None:
        """Exponentials in place of the scores; what a query had before is scaled to its new maximum.

        `before` is how many positions from the block's first on, which is `at`, come before a query's own.
        """
        to, code, lanes = self.to, self.to.code, self._lanes
        with to.loop(self._count) as i:
            scores = to.at(self._scores.data, code.mul(i, self._scores.row))
            sees = code.add(before, _limit(to, own, i))
            seen = to.smaller(to.bigger(sees, to.number(0)), width)
            hidden = code.sub(_limit(to, since, i), at)
            top_place, total_place = to.floats_on(self._tops, i), to.floats_on(self._totals, i)
            old_top = to.read(top_place, F32)
            most = to.variable(ir.VectorType(F32, lanes), to.splat(old_top, lanes))
            with to.loop(seen, lanes) as s:
                mask = to.lanes_between(code.sub(hidden, s), code.sub(seen, s), lanes)
                score = to.read(to.floats_on(scores, s), ir.VectorType(F32, lanes))
                score = code.select(mask, score, to.float_vector(lanes, _UNSEEN))
                most.set(to.greater(most.get(), score))
            top = to.folded(most.get(), to.greater)
            total = to.variable(ir.VectorType(F32, lanes), to.float_vector(lanes))
            with to.loop(width, lanes) as s:
                self._write_exponentials(
                    to.floats_on(scores, s),
                    to.lanes_between(code.sub(hidden, s), code.sub(seen, s), lanes),
                    top,
                    total,
                )
            scale = to.first_of(to.exponential(code.fsub(to.splat(old_top, lanes), top)))
            added = to.first_of(to.folded(total.get(), code.fadd))
            old = to.read(total_place, F32)
            to.write(code.fadd(code.fmul(old, scale), added), total_place)
            to.write(to.first_of(top), top_place)
            with code.if_then(code.not_(is_first)):
                self._write_scaling(i, scale)

    def _write_exponentials(self, place: Value, mask: Value, top: Value, total: Variable) -> None:
        to, code, lanes = self.to, self.to.code, self._lanes
        made = to.exponential(code.fsub(to.read(place, top.type), top))
        weight = code.select(mask, made, to.float_vector(lanes))
        to.write(weight, place)
        total.set(code.fadd(total.get(), weight))

    def write_mix(self, part: _Part, is_first: Value) -> None:
        """Adds the values of a part, weighed."""
        to, code = self.to, self.to.code
        left = code.srem(self._size, to.number(self._tiles.wide.tile.columns))
        has_some = to.is_less(to.number(0), part.width)
        with (
            code.if_then(has_some),
            code.if_else(code.icmp_signed("==", left, to.number(0))) as (then, other),
        ):
            with then:
                self._write_mix(self._tiles.wide, part, code.not_(is_first))
            with other:
                self._write_mix(self._tiles.narrow, part, code.not_(is_first))

    def _write_mix(self, tiles: Tiles, part: _Part, goes_on: Value) -> None:
        """In panels of the head."""
        to, code, tile = self.to, self.to.code, tiles.tile
        row = to.bytes_of(self._size)
        values = to.at(part.values, code.mul(part.first, row))
        weights = Matrix(to.floats_on(self._scores.data, part.place), self._scores.row)
        # What the next group will read; many queries have others of their own group after them.
        block = code.select(self._few, code.mul(self._size, part.stride), to.number(0))
        with to.loop(self._size, tile.columns) as c:
            columns = to.smaller(code.sub(self._size, c), to.number(tile.columns))
            is_whole = code.icmp_signed("==", columns, to.number(tile.columns))
            source = Matrix(to.floats_on(values, c), row)
            panel = write_direct_or_packed(to, tile, is_whole, source, part.width, columns, self._packed)
            tiles.write_rows(
                to,
                weights,
                panel,
                Matrix(to.floats_on(self.out.data, c), self.out.row),
                depth=part.width,
                columns=columns,
                rows=(to.number(0), self._count),
                goes_on=goes_on,
                ahead=Matrix(to.floats_on(source.data, block), row),
            )

    def _write_scaling(self, i: Value, scale: Value) -> None:
        """Of what a query has so far."""
        to, code, lanes = self.to, self.to.code, self._lanes
        mixed = to.at(self.out.data, code.mul(i, self.out.row))
        factor = to.splat(scale, lanes)
        whole = code.sub(self._size, code.srem(self._size, to.number(lanes)))
        with to.loop(whole, lanes) as e:
            place = to.floats_on(mixed, e)
            to.write(code.fmul(to.read(place, factor.type), factor), place)
        mask = to.first_lanes(code.sub(self._size, whole), lanes)
        with code.if_then(to.is_less(whole, self._size)):
            place = to.floats_on(mixed, whole)
            to.write_some(code.fmul(to.read_some(place, mask), factor), place, mask)
