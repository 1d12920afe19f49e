"""The norm of sampling: what it computes for a row does not depend on the other rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from termrl.engine.kernels.registered import own_kernels
from termrl.engine.products import row_sum


def stable_rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    """Over the last axis: in machine code of our own on one CPU, in XLA's elsewhere."""
    kernels = own_kernels()
    if kernels is None:
        return x * jax.lax.rsqrt(row_sum(x * x) / x.shape[-1] + epsilon) * weight
    rows = x.reshape(-1, x.shape[-1])
    out = jax.ShapeDtypeStruct(rows.shape, jnp.float32)  # type: ignore[no-untyped-call]
    made = jax.ffi.ffi_call(kernels.norm, out)(rows, weight.astype(jnp.float32), jnp.float32(epsilon))
    return jnp.reshape(made, x.shape)
