"""`x @ w` in float32, `x` [M, K] by rows, `w` in one of three layouts.

Packed matrices lie in panels, [N / columns, K, columns]; of others a panel is packed before it is used, on a
core's stack. K is gone along in runs; what one run leaves in `y` the next goes on from.
"""

from __future__ import annotations

from enum import StrEnum

from llvmlite import ir

from termrl.engine.kernels.calling import Call
from termrl.engine.kernels.interface import Interface
from termrl.engine.kernels.sharing import UNIT, Sharing
from termrl.engine.kernels.tiles import Matrix, Tiles, write_packing, write_turned_packing
from termrl.engine.kernels.writing import FLOAT_BYTES, I32, I64, POINTER, Writer

_RUN = 640
"""At most so much of K is multiplied with all rows before the next: it stays in a core's caches."""


class Layout(StrEnum):
    PACKED = "packed"
    PLAIN = "plain"
    """[K, N] by rows."""
    TURNED = "turned"
    """[N, K] by rows."""


_MOST_TILES = {Layout.PACKED: 18, Layout.PLAIN: 350, Layout.TURNED: 350}
"""Of a unit: few enough to stay in a core's cache, enough to be worth the packing of a panel."""
_ABOUT = [POINTER] * 3 + [I64] * 5
"""x, w, y, m, k, n, the rows of a unit, the panels."""


def write_product(
    module: ir.Module, interface: Interface, sharing: Sharing, tiles: Tiles, layout: Layout, name: str
) -> None:
    """`(x, w, count)`: of `x` the first rows count; in place of the others' products come zeros."""
    call = Call(module, interface, name)
    to, code, tile = call.to, call.to.code, tiles.tile
    x, w, count, y = call.argument(0, 2), call.argument(1, 2), call.argument(2, 0), call.result(0, 2)
    (rows, k), n = x.sizes, y.sizes[1]
    counted = code.sext(to.read(count.data, I32), I64)
    m = to.smaller(rows, to.bigger(counted, to.number(0)))
    y_row = to.bytes_of(n)
    to.zero(to.at(y.data, code.mul(m, y_row)), code.mul(code.sub(rows, m), y_row))
    panels = to.rounded_up(n, to.number(tile.columns))
    blocks = to.rounded_up(m, to.number(_MOST_TILES[layout] * tile.rows))
    a_block = to.rounded_up(m, to.bigger(blocks, to.number(1)))
    unit_rows = code.mul(to.rounded_up(a_block, to.number(tile.rows)), to.number(tile.rows))
    about = to.structure([x.data, w.data, y.data, m, k, n, unit_rows, panels])
    unit = _write_unit(module, tiles, layout)
    sharing.write(call, unit, about, code.mul(panels, blocks), code.mul(code.mul(m, k), n))
    call.end()


def _write_unit(module: ir.Module, tiles: Tiles, layout: Layout) -> ir.Function:
    """Some rows of a panel."""
    to = Writer(module, f"product_unit_{layout}", UNIT.return_type, UNIT.args)
    to.function.linkage = "internal"
    code, tile = to.code, tiles.tile
    about, unit = to.arguments
    x, w, y, m, k, n, unit_rows, panels = to.fields(about, _ABOUT)
    first = code.mul(code.sdiv(unit, panels), unit_rows)
    end = to.smaller(code.add(first, unit_rows), m)
    column = code.mul(code.srem(unit, panels), to.number(tile.columns))
    columns = to.smaller(code.sub(n, column), to.number(tile.columns))
    room = None if layout is Layout.PACKED else to.room(_RUN * tile.columns)
    runs = to.bigger(to.rounded_up(k, to.number(_RUN)), to.number(1))
    even = to.rounded_up(k, runs)
    with to.loop(runs) as i:
        at = code.mul(even, i)
        run = to.smaller(code.sub(k, at), even)
        ahead = None
        if layout is Layout.PACKED:
            place = code.add(code.mul(column, k), code.mul(at, to.number(tile.columns)))
            panel = Matrix(to.floats_on(w, place), to.number(tile.columns * FLOAT_BYTES))
            ahead = Matrix(to.at(panel.data, code.mul(run, panel.row)), panel.row)
        elif layout is Layout.PLAIN:
            source = Matrix(to.floats_on(w, code.add(code.mul(at, n), column)), to.bytes_of(n))
            panel = write_packing(to, tile, source, run, columns, room)
        else:
            source = Matrix(to.floats_on(w, code.add(code.mul(column, k), at)), to.bytes_of(k))
            panel = write_turned_packing(to, tile, source, run, columns, room)
        tiles.write_rows(
            to,
            Matrix(to.floats_on(x, at), to.bytes_of(k)),
            panel,
            Matrix(to.floats_on(y, column), to.bytes_of(n)),
            depth=run,
            columns=columns,
            rows=(first, end),
            goes_on=to.is_less(to.number(0), at),
            ahead=ahead,
        )
    code.ret_void()
    return to.function
