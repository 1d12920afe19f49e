"""The functions of this package as XLA knows them: made once, for the processor and the XLA at hand."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import jax

from termrl.engine.kernels.attention import AttentionTiles, write_attention
from termrl.engine.kernels.attention_backward import write_attention_backward
from termrl.engine.kernels.interface import Interface, installed_interface
from termrl.engine.kernels.norm import write_norm
from termrl.engine.kernels.product import Layout, write_product
from termrl.engine.kernels.sharing import Sharing
from termrl.engine.kernels.target import MachineCode, Target, host_target, new_module
from termrl.engine.kernels.tiles import Tiles


@dataclass(frozen=True)
class Kernels:
    """Names for `jax.ffi.ffi_call`, and the columns of a panel of packed matrices."""

    products: dict[Layout, str]
    attention: str
    attention_backward: str
    norm: str
    panel_columns: int


def own_kernels() -> Kernels | None:
    """None where XLA computes everything: on anything but one CPU, or on one that is not known."""
    # Threads may ask at once, and what is made twice XLA does not take.
    with _making:
        return _made()


_making = threading.Lock()


@functools.cache
def _made() -> Kernels | None:
    target, interface = host_target(), installed_interface()
    if target is None or interface is None:
        return None
    if jax.default_backend() != "cpu" or jax.device_count() > 1:
        return None
    return make_kernels(target, interface, "termrl")


def make_kernels(target: Target, interface: Interface, name: str) -> Kernels:
    """Takes a second."""
    module = new_module(name)
    sharing = Sharing(module)
    high, wide, long = (Tiles(module, tile) for tile in (target.high, target.wide, target.long))
    made = Kernels(
        products={layout: f"{name}_product_{layout}" for layout in Layout},
        attention=f"{name}_attention",
        attention_backward=f"{name}_attention_backward",
        norm=f"{name}_norm",
        panel_columns=target.high.columns,
    )
    for layout, product in made.products.items():
        tiles = high if layout is Layout.PACKED else wide
        write_product(module, interface, sharing, tiles, layout, product)
    write_attention(module, interface, sharing, AttentionTiles(wide, long, narrow=high), made.attention)
    write_attention_backward(module, interface, sharing, wide, high, made.attention_backward)
    write_norm(module, interface, sharing, target.high.lanes, made.norm)
    code = MachineCode(module)
    for function in (*made.products.values(), made.attention, made.attention_backward, made.norm):
        jax.ffi.register_ffi_target(function, code.capsule(function), platform="cpu")
    _kept.append(code)
    return made


_kept: list[MachineCode] = []
"""XLA knows no more of these than where they are."""
