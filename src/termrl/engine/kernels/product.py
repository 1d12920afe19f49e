"""`x @ w` in float32, `x` [M, K] by rows, `w` in one of three layouts.

A panel is the columns of `w` that a tile is wide, one after the other: [K, columns]. Packed matrices lie in
panels already, [N / columns, K, columns]; of others a panel is packed before it is used, on a core's stack.
Every element of the result is one chain of multiply-adds along K, from zero on: its bits depend on its row of
`x` and its column of `w` alone, not on what else is computed or by how many cores.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from llvmlite import ir

from termrl.engine.kernels.target import Tile
from termrl.engine.kernels.writing import BOOL, F32, FLOAT_BYTES, I32, I64, POINTER, Value, Writer

_RUN = 640
"""At most so much of K is multiplied with all rows before the next: it stays in a core's caches."""
_LINE = 64


class Layout(StrEnum):
    PACKED = "packed"
    PLAIN = "plain"
    """[K, N] by rows."""
    TURNED = "turned"
    """[N, K] by rows."""


class Factors(NamedTuple):
    """What is multiplied, as a job holds it."""

    x: Value
    w: Value
    y: Value
    m: Value
    k: Value
    n: Value


FACTORS = [POINTER] * 3 + [I64] * 3
"""The kinds of those."""
PANEL = ir.FunctionType(ir.VoidType(), FACTORS + [I64] * 3)
"""Of a function that computes some rows of a panel: the factors, the panel, the first row and the end."""


Tiles = dict[int, ir.Function]
"""By their rows, the highest first."""


def write_tiles(module: ir.Module, tile: Tile) -> Tiles:
    """Functions that compute a tile of the highest kind, and lower ones for what rows it leaves."""
    lower = [rows for rows in (8, 4, 2, 1) if rows < tile.rows]
    return {rows: _write_tile(module, tile, rows) for rows in [tile.rows, *lower]}


def _write_tile(module: ir.Module, tile: Tile, rows: int) -> ir.Function:
    """`(x, bytes of its rows, panel, k, y, bytes of its rows, columns, goes on, ahead, step)`.

    `goes on` adds to what `y` holds. A line at `ahead` is prefetched for every k, a `step` further each time.
    """
    kinds = [POINTER, I64, POINTER, I64, POINTER, I64, I64, BOOL, POINTER, I64]
    to = Writer(module, f"tile_{rows}x{tile.vectors}", ir.VoidType(), kinds)
    to.function.linkage = "internal"
    x, x_row, panel, k, y, y_row, columns, goes_on, ahead, step = to.arguments
    lanes, vectors = tile.lanes, range(tile.vectors)
    vector = ir.VectorType(F32, lanes)
    masks = [to.first_lanes(to.code.sub(columns, to.number(v * lanes)), lanes) for v in vectors]
    places = [
        [to.at(to.at(y, to.code.mul(y_row, to.number(r))), v * lanes * FLOAT_BYTES) for v in vectors]
        for r in range(rows)
    ]
    sums = [[to.variable(vector, ir.Constant(vector, None)) for _ in vectors] for _ in range(rows)]
    with to.code.if_then(goes_on):
        for r in range(rows):
            for v in vectors:
                sums[r][v].set(to.read_some(places[r][v], masks[v]))
    next_line = to.variable(POINTER, ahead)
    x_rows = [to.at(x, to.code.mul(x_row, to.number(r))) for r in range(rows)]
    with to.loop(k) as i:
        at = to.floats_on(panel, to.code.mul(i, to.number(tile.columns)))
        weights = [to.read(at, vector, v * lanes * FLOAT_BYTES) for v in vectors]
        to.prefetch(next_line.get())
        next_line.set(to.at(next_line.get(), step))
        for r in range(rows):
            factor = to.splat(to.read(to.floats_on(x_rows[r], i), F32), lanes)
            for v in vectors:
                sums[r][v].set(to.multiply_add(factor, weights[v], sums[r][v].get()))
    for r in range(rows):
        for v in vectors:
            to.write_some(sums[r][v].get(), places[r][v], masks[v])
    to.code.ret_void()
    return to.function


def write_panel(module: ir.Module, tile: Tile, layout: Layout, tiles: Tiles) -> ir.Function:
    """A `PANEL`."""
    to = Writer(module, f"panel_{layout}", PANEL.return_type, PANEL.args)
    to.function.linkage = "internal"
    *factors, panel, first, end = to.arguments
    given = Factors(*factors)
    column = to.code.mul(panel, to.number(tile.columns))
    columns = to.smaller(to.code.sub(given.n, column), to.number(tile.columns))
    if layout is Layout.PACKED:
        packed = to.floats_on(given.w, to.code.mul(column, given.k))
    else:
        with to.code.goto_entry_block():
            room = to.code.alloca(ir.ArrayType(F32, _RUN * tile.columns))
            room.align = _LINE
        packed = to.code.bitcast(room, POINTER)
    runs = to.rounded_up(given.k, to.number(_RUN))
    even = to.rounded_up(given.k, runs)
    with to.loop(runs) as i:
        at = to.code.mul(even, i)
        run = to.smaller(to.code.sub(given.k, at), even)
        start = packed
        if layout is Layout.PACKED:
            start = to.floats_on(packed, to.code.mul(at, to.number(tile.columns)))
        else:
            pack = _write_plain_packing if layout is Layout.PLAIN else _write_turned_packing
            pack(to, tile, given, column, columns, at, run, packed)
        _write_rows(to, tile, tiles, given, start, column, columns, first, end, at, run)
    to.code.ret_void()
    return to.function


def _write_rows(
    to: Writer,
    tile: Tile,
    tiles: Tiles,
    given: Factors,
    panel: Value,
    column: Value,
    columns: Value,
    first: Value,
    end: Value,
    at: Value,
    run: Value,
) -> None:
    """All tiles of a panel's rows from `first` to `end`, over the `run` of K from `at` on.

    What follows the panel in memory, which is the next one where they are packed, is prefetched meanwhile, a
    part in each of the first tiles.
    """
    code = to.code
    x_row, y_row = code.mul(given.k, to.number(FLOAT_BYTES)), code.mul(given.n, to.number(FLOAT_BYTES))
    goes_on = code.icmp_signed(">", at, to.number(0))
    following = to.floats_on(panel, code.mul(run, to.number(tile.columns)))
    part = code.mul(run, to.number(_LINE))
    lines = -(-tile.columns * FLOAT_BYTES // _LINE)
    ahead, left = to.variable(POINTER, following), to.variable(I64, to.number(lines))
    row = to.variable(I64, first)
    for rows, compute in tiles.items():
        with to.forever() as after:
            to.leave_if(code.icmp_signed("<", code.sub(end, row.get()), to.number(rows)), after)
            begun = to.floats_on(to.at(given.x, code.mul(row.get(), x_row)), at)
            place = to.floats_on(to.at(given.y, code.mul(row.get(), y_row)), column)
            some = code.icmp_signed(">", left.get(), to.number(0))
            step = code.select(some, to.number(_LINE), to.number(0))
            code.call(compute, [begun, x_row, panel, run, place, y_row, columns, goes_on, ahead.get(), step])
            ahead.set(to.at(ahead.get(), code.select(some, part, to.number(0))))
            left.set(code.sub(left.get(), to.number(1)))
            row.set(code.add(row.get(), to.number(rows)))


def _write_plain_packing(
    to: Writer, tile: Tile, given: Factors, column: Value, columns: Value, at: Value, run: Value, room: Value
) -> None:
    with to.loop(run) as i:
        row = to.code.mul(to.code.add(at, i), given.n)
        source = to.floats_on(given.w, to.code.add(row, column))
        place = to.floats_on(room, to.code.mul(i, to.number(tile.columns)))
        for v in range(tile.vectors):
            mask = to.first_lanes(to.code.sub(columns, to.number(v * tile.lanes)), tile.lanes)
            offset = v * tile.lanes * FLOAT_BYTES
            to.write(to.read_some(to.at(source, offset), mask), place, offset)


def _write_turned_packing(
    to: Writer, tile: Tile, given: Factors, column: Value, columns: Value, at: Value, run: Value, room: Value
) -> None:
    """A square of as many rows and columns as a vector has lanes at a time."""
    code, lanes = to.code, tile.lanes
    last = code.sub(given.n, to.number(1))
    with to.loop(run, lanes) as i:
        mask = to.first_lanes(code.sub(run, i), lanes)
        with to.loop(columns, lanes) as c:
            square = []
            for j in range(lanes):
                # Beside the last column stands the last column again, which is never written out.
                source = to.smaller(code.add(code.add(column, c), to.number(j)), last)
                place = code.add(code.mul(source, given.k), code.add(at, i))
                square.append(to.read_some(to.floats_on(given.w, place), mask))
            for j, row in enumerate(_transposed(to, square)):
                place = code.add(code.mul(code.add(i, to.number(j)), to.number(tile.columns)), c)
                to.write(row, to.floats_on(room, place))


def _transposed(to: Writer, square: list[Value]) -> list[Value]:
    lanes = len(square)
    rows = list(square)
    width = 1
    while width < lanes:
        for i in range(lanes):
            if i & width:
                continue
            low = [lanes + j - width if j & width else j for j in range(lanes)]
            high = [lanes + j if j & width else j + width for j in range(lanes)]
            kind = ir.VectorType(I32, lanes)
            a, b = rows[i], rows[i + width]
            rows[i] = to.code.shuffle_vector(a, b, ir.Constant(kind, low))
            rows[i + width] = to.code.shuffle_vector(a, b, ir.Constant(kind, high))
        width *= 2
    return rows
