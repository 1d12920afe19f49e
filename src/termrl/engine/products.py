"""`x @ weight` and its gradients: in machine code of our own on one CPU, in XLA's elsewhere.

Our own (`kernels`) takes float32. Beside XLA's it is half again as fast and more where `x` has few rows, and
what it computes for a row does not depend on the other rows. Axis names are those of `llama`; I and O are a
weight's ins and outs, R the rank of an adapter. A weight is stored [in, out]; one that is `turned` lies
[out, in], as the vocabulary's do.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from termrl.engine.kernels.product import Layout
from termrl.engine.kernels.registered import own_kernels

MULTIPLIED = "multiplied"
"""The name under which `jax.checkpoint` may keep a product."""


@functools.partial(jax.tree_util.register_dataclass, data_fields=["panels"], meta_fields=["width"])
@dataclass(frozen=True)
class Packed:
    """A weight whose columns lie in panels, [panels, in, columns of a panel], ready to be multiplied with.

    The last panel is filled up with zeros; `width` is the columns that count.
    """

    panels: Array
    width: int


def pack(weight_I_O: Array) -> Packed | Array:
    """A weight as `product` is fastest with it, where that is used over and over with few rows."""
    kernels = own_kernels() if weight_I_O.dtype == jnp.float32 else None
    if kernels is None:
        return weight_I_O
    inner, outer = weight_I_O.shape
    filled = jnp.pad(weight_I_O, ((0, 0), (0, -outer % kernels.panel_columns)))
    return Packed(filled.reshape(inner, -1, kernels.panel_columns).swapaxes(0, 1), outer)


def product(
    x: Array, weight: Array | Packed, *, turned: bool = False, count: Array | int | None = None
) -> Array:
    """A float32 product over the last axis of `x`; where the weight is bfloat16 its factors are, and the sum
    is not.

    Rows from `count` on, where it is given, may be taken for zeros, which saves their products.
    """
    if isinstance(weight, Packed):
        return _call(Layout.PACKED, x, weight.panels, weight.width, count)
    if weight.dtype == jnp.float32 and own_kernels() is not None:
        layout, width = (Layout.TURNED, weight.shape[0]) if turned else (Layout.PLAIN, weight.shape[1])
        return _call(layout, x, weight, width, count)
    weight_I_O = weight.T if turned else weight
    return jnp.dot(x.astype(weight.dtype), weight_I_O, preferred_element_type=jnp.float32)


def row_sum(x: Array) -> Array:
    """The sum over the last axis, as a product: XLA's own sum changes its order with the rows."""
    return product(x, pack(jnp.ones((x.shape[-1], 1))))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear(x_N_I: Array, weight: Array, turned: bool = False) -> Array:
    """`x @ weight`, with a backward pass that takes its factors as they lie."""
    return product(x_N_I, weight, turned=turned)


def _linear_forward(x_N_I: Array, weight: Array, turned: bool) -> tuple[Array, tuple[Array, Array]]:
    return product(x_N_I, weight, turned=turned), (x_N_I, weight)


def _linear_backward(turned: bool, kept: tuple[Array, Array], out_N_O: Array) -> tuple[Array, Array]:
    x_N_I, weight = kept
    factors = (out_N_O, x_N_I) if turned else (x_N_I, out_N_O)
    first, second = (factor.astype(weight.dtype) for factor in factors)
    into_weight = jax.lax.dot_general(first, second, (((0,), (0,)), ((), ())))
    return product(out_N_O, weight, turned=not turned), into_weight


linear.defvjp(_linear_forward, _linear_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def frozen_linear(x_N_I: Array, weight: Array, turned: bool = False) -> Array:
    """`x @ weight` for a weight that is not trained: half of the backward pass is not there."""
    return product(x_N_I, weight, turned=turned)


def _frozen_forward(x_N_I: Array, weight: Array, turned: bool) -> tuple[Array, Array]:
    return product(x_N_I, weight, turned=turned), weight


def _frozen_backward(turned: bool, weight: Array, out_N_O: Array) -> tuple[Array, None]:
    return product(out_N_O, weight, turned=not turned), None


frozen_linear.defvjp(_frozen_forward, _frozen_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def adapted_linear(x_N_I: Array, weight: Array, a_I_R: Array, b_R_O: Array, turned: bool = False) -> Array:
    """`x @ weight` for a frozen weight to which `a @ b` was added; `a` and `b` get their gradients.

    Four thin products in the backward pass are all that the adapter costs.
    """
    return product(x_N_I, weight, turned=turned)


def _adapted_forward(
    x_N_I: Array, weight: Array, a_I_R: Array, b_R_O: Array, turned: bool
) -> tuple[Array, tuple[Array, Array, Array, Array]]:
    return product(x_N_I, weight, turned=turned), (x_N_I, weight, a_I_R, b_R_O)


def _adapted_backward(
    turned: bool, kept: tuple[Array, Array, Array, Array], out_N_O: Array
) -> tuple[Array, None, Array, Array]:
    x_N_I, weight, a_I_R, b_R_O = kept
    first = (((0,), (0,)), ((), ()))
    # The thin factor is the one to be transposed; else XLA turns the product round again.
    into_a = as_written(jax.lax.dot_general(out_N_O @ b_R_O.T, x_N_I, first)).T
    into_b = jax.lax.dot_general(x_N_I @ a_I_R, out_N_O, first)
    return product(out_N_O, weight, turned=not turned), None, into_a, into_b


adapted_linear.defvjp(_adapted_forward, _adapted_backward)


def as_written(x: Array) -> Array:
    """`x`, which XLA then computes here and as it stands, whatever it is used for."""
    held: Array = jax.lax.optimization_barrier(x)  # type: ignore[no-untyped-call]
    return held


def _call(layout: Layout, x: Array, weight: Array, width: int, count: Array | int | None) -> Array:
    kernels = own_kernels()
    assert kernels is not None
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    counted = jnp.asarray(rows.shape[0] if count is None else count, jnp.int32)
    out = jax.ShapeDtypeStruct((rows.shape[0], width), jnp.float32)  # type: ignore[no-untyped-call]
    made = jax.ffi.ffi_call(kernels.products[layout], out)(rows, weight, counted)
    named: Array = checkpoint_name(made, MULTIPLIED)  # type: ignore[no-untyped-call]
    return named.reshape(*x.shape[:-1], width)
