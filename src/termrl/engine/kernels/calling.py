"""How XLA calls a product, and how cores share one.

A call finds its arrays in a frame whose layout is that of XLA's foreign function interface. It puts its job
where helpers find it, asks XLA's own threads for help, and begins. A job's units are split into as many
ranges as there may be hands; who is done with a range goes on with the next. Nobody waits for help that has
not come: who comes late finds the job closed.
"""

from __future__ import annotations

from llvmlite import ir

from termrl.engine.kernels.interface import Interface
from termrl.engine.kernels.product import FACTORS, PANEL, Factors, Layout, write_panel, write_tiles
from termrl.engine.kernels.target import Target, Tile
from termrl.engine.kernels.writing import I32, I64, POINTER, Value, Writer

_JOBS = 16
"""Calls that are shared at once; one more is computed by its own thread alone."""
_HANDS = 64
_ALONE = 1 << 21
"""Multiply-adds up to which asking for help takes longer than it saves."""
_TILES = {Layout.PACKED: 18, Layout.PLAIN: 350, Layout.TURNED: 350}
"""At most, of a unit: few enough to stay in a core's cache, enough to be worth the packing of a panel."""

# Where XLA's structures hold what is needed of them, in bytes (xla/ffi/api/c_api.h).
_FRAME_EXTENSION, _FRAME_API, _FRAME_CONTEXT, _FRAME_ARGUMENTS, _FRAME_RESULTS = 8, 16, 24, 72, 112
_BUFFER_DATA, _BUFFER_SIZES = 24, 40
_API_VERSION = 32
_EXTENSION_METADATA, _METADATA_VERSION, _METADATA_TRAITS = 24, 24, 32
_SCHEDULE_BYTES, _THREADS_BYTES = 40, 32

_BUSY, _OPEN, _ACTIVE, _JOINED, _PANEL, _FACTORS, _UNIT_ROWS, _PANELS, _UNITS, _RANGES, _NEXT = range(11)
_JOB = ir.LiteralStructType(
    [I64] * 4 + [PANEL.as_pointer(), ir.LiteralStructType(FACTORS)] + [I64] * 4 + [ir.ArrayType(I64, _HANDS)]
)


def write_products(module: ir.Module, target: Target, interface: Interface, name: str) -> dict[Layout, str]:
    """Functions that XLA can call, by layout."""
    jobs = ir.GlobalVariable(module, ir.ArrayType(_JOB, _JOBS), "jobs")
    jobs.initializer = ir.Constant(jobs.value_type, None)
    jobs.linkage, jobs.align = "internal", 64
    help_with = _write_help(module)
    tiles = {tile: write_tiles(module, tile) for tile in (target.high, target.wide)}
    for layout in Layout:
        tile = target.high if layout is Layout.PACKED else target.wide
        panel = write_panel(module, tile, layout, tiles[tile])
        most_rows = _TILES[layout] * tile.rows
        _write_call(module, tile, interface, f"{name}_{layout}", panel, most_rows, jobs, help_with)
    return {layout: f"{name}_{layout}" for layout in Layout}


def _field(to: Writer, job: Value, *path: Value | int) -> Value:
    indices = [ir.Constant(I32, 0)]
    indices += [ir.Constant(I32, step) if isinstance(step, int) else step for step in path]
    return to.code.gep(job, indices)


def _write_help(module: ir.Module) -> ir.Function:
    """A function that works at a job as long as it is open and there is something left."""
    to = Writer(module, "help", ir.VoidType(), [POINTER])
    to.function.linkage = "internal"
    code = to.code
    job = code.bitcast(to.arguments[0], _JOB.as_pointer())
    active = _field(to, job, _ACTIVE)
    code.atomic_rmw("add", active, to.number(1), "seq_cst")
    is_open = code.load_atomic(_field(to, job, _OPEN), "seq_cst", 8)
    with code.if_then(code.icmp_signed("!=", is_open, to.number(0))):
        panel = code.load(_field(to, job, _PANEL))
        given = [code.load(_field(to, job, _FACTORS, n)) for n in range(len(FACTORS))]
        unit_rows, panels, units, ranges = (
            code.load(_field(to, job, n)) for n in (_UNIT_ROWS, _PANELS, _UNITS, _RANGES)
        )
        mine = code.atomic_rmw("add", _field(to, job, _JOINED), to.number(1), "seq_cst")
        with to.loop(ranges) as passed:
            here = code.srem(code.add(mine, passed), ranges)
            end = code.sdiv(code.mul(units, code.add(here, to.number(1))), ranges)
            with to.forever() as after:
                unit = code.atomic_rmw("add", _field(to, job, _NEXT, here), to.number(1), "seq_cst")
                to.leave_if(code.icmp_signed(">=", unit, end), after)
                first = code.mul(code.sdiv(unit, panels), unit_rows)
                last = to.smaller(code.add(first, unit_rows), Factors(*given).m)
                code.call(panel, [*given, code.srem(unit, panels), first, last])
    code.atomic_rmw("sub", active, to.number(1), "seq_cst")
    code.ret_void()
    return to.function


def _write_call(
    module: ir.Module,
    tile: Tile,
    interface: Interface,
    name: str,
    panel: ir.Function,
    most_rows: int,
    jobs: Value,
    help_with: ir.Function,
) -> None:
    """`panel` computes up to so many rows at a time."""
    to = Writer(module, name, POINTER, [POINTER])
    code, frame = to.code, to.arguments[0]
    nothing = ir.Constant(POINTER, None)
    api, context = to.read(frame, POINTER, _FRAME_API), to.read(frame, POINTER, _FRAME_CONTEXT)
    extension = to.read(frame, POINTER, _FRAME_EXTENSION)
    with code.if_then(code.icmp_unsigned("!=", extension, nothing)):
        # XLA asks, once, which version of its interface this is written for: the one that asks.
        metadata = to.read(extension, POINTER, _EXTENSION_METADATA)
        to.write(to.read(api, I64, _API_VERSION), metadata, _METADATA_VERSION)
        to.write(ir.Constant(I32, 0), metadata, _METADATA_TRAITS)
        code.ret(nothing)

    arguments = to.read(frame, POINTER, _FRAME_ARGUMENTS)
    x, w = (to.read(arguments, POINTER, 8 * n) for n in range(2))
    y = to.read(to.read(frame, POINTER, _FRAME_RESULTS), POINTER)
    sizes = to.read(x, POINTER, _BUFFER_SIZES)
    m, k = to.read(sizes, I64), to.read(sizes, I64, 8)
    n = to.read(to.read(y, POINTER, _BUFFER_SIZES), I64, 8)
    given = [*(to.read(buffer, POINTER, _BUFFER_DATA) for buffer in (x, w, y)), m, k, n]

    with code.goto_entry_block():
        own = code.alloca(_JOB)
        code.store(to.number(0), _field(to, own, _ACTIVE))
    work = code.mul(code.mul(m, k), n)
    hands = to.variable(I64, to.number(1))
    chosen = to.variable(_JOB.as_pointer(), own)
    with code.if_then(code.icmp_signed(">", work, to.number(_ALONE))):
        hands.set(to.smaller(_write_thread_count(to, interface, api, context), to.number(_HANDS)))
        with code.if_then(code.icmp_signed(">", hands.get(), to.number(1))):
            chosen.set(_write_claim(to, jobs, own))
    job = chosen.get()
    shared = code.icmp_unsigned("!=", job, own)
    ranges = code.select(shared, hands.get(), to.number(1))

    panels = to.rounded_up(n, to.number(tile.columns))
    blocks = to.rounded_up(m, to.number(most_rows))
    tiles = to.rounded_up(to.rounded_up(m, blocks), to.number(tile.rows))
    unit_rows, units = code.mul(tiles, to.number(tile.rows)), code.mul(panels, blocks)
    fields = {_PANEL: panel, _JOINED: to.number(0), _UNIT_ROWS: unit_rows, _PANELS: panels}
    for place, value in (fields | {_UNITS: units, _RANGES: ranges}).items():
        code.store(value, _field(to, job, place))
    for place, value in enumerate(given):
        code.store(value, _field(to, job, _FACTORS, place))
    with to.loop(ranges) as i:
        code.store(code.sdiv(code.mul(units, i), ranges), _field(to, job, _NEXT, i))
    code.store_atomic(to.number(1), _field(to, job, _OPEN), "seq_cst", 8)

    data = code.bitcast(job, POINTER)
    with to.loop(ranges, start=1):
        _write_schedule(to, interface, api, context, help_with, data)
    code.call(help_with, [data])
    code.store_atomic(to.number(0), _field(to, job, _OPEN), "seq_cst", 8)
    with to.forever() as after:
        active = code.load_atomic(_field(to, job, _ACTIVE), "seq_cst", 8)
        to.leave_if(code.icmp_signed("==", active, to.number(0)), after)
    with code.if_then(shared):
        code.store_atomic(to.number(0), _field(to, job, _BUSY), "seq_cst", 8)
    code.ret(nothing)


def _write_claim(to: Writer, jobs: Value, otherwise: Value) -> Value:
    """A free one of the jobs that helpers know."""
    code = to.code
    found = to.variable(_JOB.as_pointer(), otherwise)
    after = to.function.append_basic_block()
    with to.loop(to.number(_JOBS)) as i:
        job = code.gep(jobs, [ir.Constant(I32, 0), i])
        free = code.cmpxchg(_field(to, job, _BUSY), to.number(0), to.number(1), "seq_cst", "seq_cst")
        with code.if_then(code.extract_value(free, 1)):
            found.set(job)
            code.branch(after)
    code.branch(after)
    code.position_at_end(after)
    return found.get()


def _write_thread_count(to: Writer, interface: Interface, api: Value, context: Value) -> Value:
    code = to.code
    count = to.variable(I64, to.number(1))
    place = code.bitcast(count.place, POINTER)
    asked = _write_arguments(to, [to.number(_THREADS_BYTES), None, context, place])
    _write_api_call(to, api, interface.thread_count, asked)
    return count.get()


def _write_schedule(
    to: Writer, interface: Interface, api: Value, context: Value, task: ir.Function, data: Value
) -> None:
    code = to.code
    asked = _write_arguments(
        to, [to.number(_SCHEDULE_BYTES), None, context, code.bitcast(task, POINTER), data]
    )
    _write_api_call(to, api, interface.schedule, asked)


def _write_arguments(to: Writer, fields: list[Value | None]) -> Value:
    """A structure of XLA's on the stack, eight bytes a field."""
    code = to.code
    with code.goto_entry_block():
        room = code.alloca(ir.ArrayType(I64, len(fields)))
    start = code.bitcast(room, POINTER)
    for n, value in enumerate(fields):
        to.write(to.number(0) if value is None else value, start, 8 * n)
    return start


def _write_api_call(to: Writer, api: Value, offset: int, asked: Value) -> None:
    function = to.read(api, ir.FunctionType(POINTER, [POINTER]).as_pointer(), offset)
    to.code.call(function, [asked])
