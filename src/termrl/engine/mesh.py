"""One host's devices as a grid: the data axis splits batches, the model axis splits matrices.

Weights are placed once, when a model is loaded; XLA derives from that how everything else is split and where
results are exchanged. With one device nothing is placed and nothing changes.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from termrl.engine.llama import Layers, Params
from termrl.errors import UserError

_OUT_SPLIT = ("q", "k", "v", "gate", "up")
_IN_SPLIT = ("o", "down")


class MeshError(UserError):
    """The devices cannot be arranged as asked."""


def make_mesh(tensor_parallel: int = 1) -> Mesh | None:
    """All devices, `tensor_parallel` of them to a model; None where there is but one."""
    devices = jax.devices()
    if tensor_parallel < 1 or len(devices) % tensor_parallel:
        raise MeshError(f"{len(devices)} devices cannot be split into groups of {tensor_parallel}.")
    if len(devices) == 1:
        return None
    return Mesh(np.asarray(devices).reshape(-1, tensor_parallel), ("data", "model"))


def place_params(params: Params, mesh: Mesh | None) -> Params:
    if mesh is None:
        return params

    def place(value: Any, *axes: str | None) -> Any:
        if value is None:
            return None
        fits = all(axis is None or value.shape[i] % mesh.shape[axis] == 0 for i, axis in enumerate(axes))
        return jax.device_put(value, _sharding(mesh, *(axes if fits else ())))

    def place_layer(name: str, value: Any) -> Any:
        if name in _OUT_SPLIT:
            return place(value, None, None, "model")
        return place(value, None, "model") if name in _IN_SPLIT else place(value)

    return Params(
        embed=place(params.embed, "model"),
        layers=Layers(**{name: place_layer(name, value) for name, value in params.layers._asdict().items()}),
        final_norm=place(params.final_norm),
        unembed=place(params.unembed, "model"),
    )


def place_batch(batch: Any, mesh: Mesh | None) -> Any:
    """Splits the rows of every array over the data axis, where they divide."""
    if mesh is None:
        return batch

    def place(value: Any) -> Any:
        splits = value.ndim > 0 and value.shape[0] % mesh.shape["data"] == 0
        return jax.device_put(value, _sharding(mesh, *(("data",) if splits else ())))

    return jax.tree.map(place, batch)


def _sharding(mesh: Mesh, *axes: str | None) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]
