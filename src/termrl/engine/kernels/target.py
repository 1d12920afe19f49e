"""What the processor has to compute with, and machine code for it."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir


@dataclass(frozen=True)
class Tile:
    """What is computed at once: so many rows by so many vectors of columns, held in registers."""

    lanes: int
    rows: int
    vectors: int

    @property
    def columns(self) -> int:
        return self.lanes * self.vectors


@dataclass(frozen=True)
class Target:
    """The tiles that suit a processor.

    High ones read less of `w`, which matters where it comes from memory; wide ones less of `x`, and packing a
    wide panel takes fewer steps; long ones are for few rows of `x` and read `w` as it lies.
    """

    high: Tile
    wide: Tile
    long: Tile


AVX512 = Target(high=Tile(16, 14, 2), wide=Tile(16, 6, 4), long=Tile(16, 3, 8))
AVX2 = Target(high=Tile(8, 6, 2), wide=Tile(8, 4, 3), long=Tile(8, 3, 4))
NEON = Target(high=Tile(4, 14, 2), wide=Tile(4, 6, 4), long=Tile(4, 3, 8))


@functools.cache
def host_target() -> Target | None:
    """None where the processor is not known to multiply and add in one instruction."""
    features = _host_features()
    if features.get("avx512f"):
        return AVX512
    if features.get("fma") and features.get("avx2"):
        return AVX2
    return NEON if features.get("neon") else None


class MachineCode:
    """A module's functions as machine code. They are there as long as this is."""

    def __init__(self, module: ir.Module) -> None:
        features = _host_features().flatten()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True
        )
        parsed = llvm.parse_assembly(str(module))
        # What is to be vectors, and unrolled, is written so already.
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(parsed, builder)
        self._engine = llvm.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()

    def capsule(self, name: str) -> Any:
        """A function as what JAX takes for one."""
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(self._engine.get_function_address(name), None, None)


def new_module(name: str) -> ir.Module:
    module = ir.Module(name)
    module.triple = llvm.get_default_triple()
    return module


@functools.cache
def _host_features() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.get_host_cpu_features()
