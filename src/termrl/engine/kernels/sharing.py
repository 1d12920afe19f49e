"""How cores share what was asked for: units of work, done by whoever comes.

Who is asked puts its job where helpers find it, asks XLA's own threads for help, and begins. A job's units
are split into as many ranges as there may be hands; who is done with a range goes on with the next. Nobody
waits for help that has not come: who comes late finds the job closed.
"""

from __future__ import annotations

from llvmlite import ir

from termrl.engine.kernels.calling import Call
from termrl.engine.kernels.writing import I32, I64, POINTER, Value, Writer

UNIT = ir.FunctionType(ir.VoidType(), [POINTER, I64])
"""Of a function that does one unit: what the job is about, and which."""
_JOBS = 16
"""Calls that are shared at once; one more is computed by its own thread alone."""
_HANDS = 64
_LOOKS = 2000
"""At helpers that are not done, before the core is offered to others."""
_ALONE = 1 << 21
"""Multiply-adds up to which asking for help takes longer than it saves."""

_BUSY, _OPEN, _ACTIVE, _JOINED, _DO, _ABOUT, _UNITS, _RANGES, _NEXT = range(9)
_JOB = ir.LiteralStructType(
    [I64] * 4 + [UNIT.as_pointer(), POINTER] + [I64] * 2 + [ir.ArrayType(I64, _HANDS)]
)


class Sharing:
    """What the functions of a module share their work by."""

    def __init__(self, module: ir.Module) -> None:
        self._jobs = ir.GlobalVariable(module, ir.ArrayType(_JOB, _JOBS), "jobs")
        self._jobs.initializer = ir.Constant(self._jobs.value_type, None)
        self._jobs.linkage, self._jobs.align = "internal", 64
        self._help = _write_help(module)

    def write(self, call: Call, do: ir.Function, about: Value, units: Value, work: Value) -> None:
        """Has a `UNIT` called for every unit, all of which together take so many multiply-adds."""
        to, code = call.to, call.to.code
        with code.goto_entry_block():
            own = code.alloca(_JOB)
            code.store(to.number(0), _field(to, own, _ACTIVE))
        hands = to.variable(I64, to.number(1))
        chosen = to.variable(_JOB.as_pointer(), own)
        with code.if_then(code.icmp_signed(">", work, to.number(_ALONE))):
            hands.set(to.smaller(call.thread_count(), to.number(_HANDS)))
            with code.if_then(code.icmp_signed(">", hands.get(), to.number(1))):
                chosen.set(self._write_claim(to, own))
        job = chosen.get()
        shared = code.icmp_unsigned("!=", job, own)
        ranges = code.select(shared, hands.get(), to.number(1))
        fields = {_JOINED: to.number(0), _DO: do, _ABOUT: about, _UNITS: units, _RANGES: ranges}
        for place, value in fields.items():
            code.store(value, _field(to, job, place))
        with to.loop(ranges) as i:
            code.store(code.sdiv(code.mul(units, i), ranges), _field(to, job, _NEXT, i))
        code.store_atomic(to.number(1), _field(to, job, _OPEN), "seq_cst", 8)

        found = code.bitcast(job, POINTER)
        with to.loop(ranges, start=1):
            call.schedule(self._help, found)
        code.call(self._help, [found])
        code.store_atomic(to.number(0), _field(to, job, _OPEN), "seq_cst", 8)
        looks = to.variable(I64, to.number(0))
        with to.forever() as after:
            active = code.load_atomic(_field(to, job, _ACTIVE), "seq_cst", 8)
            to.leave_if(code.icmp_signed("==", active, to.number(0)), after)
            looks.set(code.add(looks.get(), to.number(1)))
            # A helper that is not running may be waiting for this very core.
            with code.if_then(to.is_less(to.number(_LOOKS), looks.get())):
                code.call(to.outside("sched_yield", ir.FunctionType(I32, [])), [])
        with code.if_then(shared):
            code.store_atomic(to.number(0), _field(to, job, _BUSY), "seq_cst", 8)

    def _write_claim(self, to: Writer, otherwise: Value) -> Value:
        """A free one of the jobs that helpers know."""
        code = to.code
        found = to.variable(_JOB.as_pointer(), otherwise)
        after = to.function.append_basic_block()
        with to.loop(to.number(_JOBS)) as i:
            job = code.gep(self._jobs, [ir.Constant(I32, 0), i])
            free = code.cmpxchg(_field(to, job, _BUSY), to.number(0), to.number(1), "seq_cst", "seq_cst")
            with code.if_then(code.extract_value(free, 1)):
                found.set(job)
                code.branch(after)
        code.branch(after)
        code.position_at_end(after)
        return found.get()


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
        do, about, units, ranges = (code.load(_field(to, job, n)) for n in (_DO, _ABOUT, _UNITS, _RANGES))
        mine = code.atomic_rmw("add", _field(to, job, _JOINED), to.number(1), "seq_cst")
        with to.loop(ranges) as passed:
            here = code.srem(code.add(mine, passed), ranges)
            end = code.sdiv(code.mul(units, code.add(here, to.number(1))), ranges)
            with to.forever() as after:
                unit = code.atomic_rmw("add", _field(to, job, _NEXT, here), to.number(1), "seq_cst")
                to.leave_if(code.icmp_signed(">=", unit, end), after)
                code.call(do, [about, unit])
    code.atomic_rmw("sub", active, to.number(1), "seq_cst")
    code.ret_void()
    return to.function
