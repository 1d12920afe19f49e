"""What every product is made of: tiles held in registers, and panels that they are multiplied from.

A tile is so many rows of `y` by so many vectors of columns; a panel is the columns of a matrix that a tile is
wide, one row after the other. Every element of `y` is one chain of multiply-adds, from zero or from what `y`
holds on: its bits depend on its row of `x` and its column of the panel alone.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from termrl.engine.kernels.target import Tile
from termrl.engine.kernels.writing import BOOL, F32, FLOAT_BYTES, I32, I64, LINE, POINTER, Value, Writer


class Matrix(NamedTuple):
    """Rows in memory, so many bytes apart."""

    data: Value
    row: Value


class Tiles:
    """Functions that compute a tile of the highest kind, and lower ones for what rows it leaves."""

    def __init__(self, module: ir.Module, tile: Tile) -> None:
        self.tile = tile
        lower = [rows for rows in (8, 4, 2, 1) if rows < tile.rows]
        self._by_rows = {rows: _write_tile(module, tile, rows) for rows in [tile.rows, *lower]}

    def write_rows(
        self,
        to: Writer,
        x: Matrix,
        panel: Matrix,
        y: Matrix,
        *,
        depth: Value,
        columns: Value,
        rows: tuple[Value, Value],
        goes_on: Value,
        ahead: Matrix | None = None,
    ) -> None:
        """`y = x @ panel`, or `y += x @ panel`, of the first columns, of the rows from one to another.

        `ahead` is the panel that will be needed next: it is prefetched beside the first tile.
        """
        code = to.code
        first, end = rows
        prefetched, prefetched_row = ahead or Matrix(panel.data, to.number(0))
        step = to.variable(I64, prefetched_row)
        row = to.variable(I64, first)
        for height, compute in self._by_rows.items():
            with to.forever() as after:
                to.leave_if(to.is_less(code.sub(end, row.get()), to.number(height)), after)
                x_at = to.at(x.data, code.mul(row.get(), x.row))
                y_at = to.at(y.data, code.mul(row.get(), y.row))
                factors = [x_at, x.row, panel.data, panel.row, depth]
                code.call(compute, [*factors, y_at, y.row, columns, goes_on, prefetched, step.get()])
                step.set(to.number(0))
                row.set(code.add(row.get(), to.number(height)))


def _write_tile(module: ir.Module, tile: Tile, rows: int) -> ir.Function:
    """`(x, panel, depth, y, columns, goes on, ahead, step)`, matrices with the bytes of their rows.

    `goes on` adds to what `y` holds. For every k as much as a row of the panel is prefetched, from `ahead` on
    and a `step` further each time.
    """
    kinds = [POINTER, I64, POINTER, I64, I64, POINTER, I64, I64, BOOL, POINTER, I64]
    to = Writer(module, f"tile_{rows}x{tile.vectors}", ir.VoidType(), kinds)
    to.function.linkage = "internal"
    # It is called from many places; in each of them it would take its time to compile.
    to.function.attributes.add("noinline")
    x, x_row, panel, panel_row, depth, y, y_row, columns, goes_on, ahead, step = to.arguments
    lanes, vectors = tile.lanes, range(tile.vectors)
    vector = ir.VectorType(F32, lanes)
    masks = [to.first_lanes(to.code.sub(columns, to.number(v * lanes)), lanes) for v in vectors]
    # What was written under a mask can't be read again at once; a whole tile is written without.
    is_whole = to.is_less(to.number(tile.columns - 1), columns)
    places = [
        [to.at(to.at(y, to.code.mul(y_row, to.number(r))), v * lanes * FLOAT_BYTES) for v in vectors]
        for r in range(rows)
    ]
    cells = [(r, v) for r in range(rows) for v in vectors]
    sums = [[to.variable(vector, ir.Constant(vector, None)) for _ in vectors] for _ in range(rows)]
    with to.code.if_then(goes_on), to.code.if_else(is_whole) as (then, otherwise):
        with then:
            for r, v in cells:
                sums[r][v].set(to.read(places[r][v], vector))
        with otherwise:
            for r, v in cells:
                sums[r][v].set(to.read_some(places[r][v], masks[v]))
    prefetched, at = to.variable(POINTER, ahead), to.variable(POINTER, panel)
    x_rows = [to.at(x, to.code.mul(x_row, to.number(r))) for r in range(rows)]
    with to.loop(depth) as i:
        weights = [to.read(at.get(), vector, v * lanes * FLOAT_BYTES) for v in vectors]
        at.set(to.at(at.get(), panel_row))
        for line in range(0, tile.columns * FLOAT_BYTES, LINE):
            to.prefetch(to.at(prefetched.get(), line))
        prefetched.set(to.at(prefetched.get(), step))
        for r in range(rows):
            factor = to.splat(to.read(to.floats_on(x_rows[r], i), F32), lanes)
            for v in vectors:
                sums[r][v].set(to.multiply_add(factor, weights[v], sums[r][v].get()))
    with to.code.if_else(is_whole) as (then, otherwise):
        with then:
            for r, v in cells:
                to.write(sums[r][v].get(), places[r][v])
        with otherwise:
            for r, v in cells:
                to.write_some(sums[r][v].get(), places[r][v], masks[v])
    to.code.ret_void()
    return to.function


def write_packing(
    to: Writer, tile: Tile, source: Matrix, depth: Value, columns: Value, room: Value
) -> Matrix:
    """A panel of the first columns of so many rows."""
    row = tile.columns * FLOAT_BYTES
    with to.loop(depth) as i:
        read = to.at(source.data, to.code.mul(i, source.row))
        place = to.at(room, to.code.mul(i, to.number(row)))
        for v in range(tile.vectors):
            mask = to.first_lanes(to.code.sub(columns, to.number(v * tile.lanes)), tile.lanes)
            offset = v * tile.lanes * FLOAT_BYTES
            to.write(to.read_some(to.at(read, offset), mask), place, offset)
    return Matrix(room, to.number(row))


def write_direct_or_packed(
    to: Writer, tile: Tile, direct: Value, source: Matrix, depth: Value, columns: Value, room: Value
) -> Matrix:
    """The source itself for a panel, or a packed copy."""
    data, row = to.variable(POINTER, source.data), to.variable(I64, source.row)
    with to.code.if_then(to.code.not_(direct)):
        packed = write_packing(to, tile, source, depth, columns, room)
        data.set(packed.data)
        row.set(packed.row)
    return Matrix(data.get(), row.get())


def write_turned_packing(
    to: Writer, tile: Tile, source: Matrix, depth: Value, columns: Value, room: Value
) -> Matrix:
    """The same where the columns lie one below the other.

    A square of as many rows and columns as a vector has lanes at a time.
    """
    code, lanes = to.code, tile.lanes
    last = code.sub(columns, to.number(1))
    with to.loop(depth, lanes) as i:
        mask = to.first_lanes(code.sub(depth, i), lanes)
        with to.loop(columns, lanes) as c:
            square = []
            for j in range(lanes):
                # Beside the last column stands the last column again, which is never written out.
                column = to.smaller(code.add(c, to.number(j)), last)
                read = to.floats_on(to.at(source.data, code.mul(column, source.row)), i)
                square.append(to.read_some(read, mask))
            for j, line in enumerate(_transposed(to, square)):
                place = code.add(code.mul(code.add(i, to.number(j)), to.number(tile.columns)), c)
                to.write(line, to.floats_on(room, place))
    return Matrix(room, to.number(tile.columns * FLOAT_BYTES))


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
