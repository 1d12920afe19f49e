"""A base model as the engine holds it: configuration, parameters and tokenizer of one directory."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from tokenizers import Tokenizer

from termrl.engine.architecture import LlamaConfig
from termrl.engine.catalog import resolve_model
from termrl.engine.llama import Params
from termrl.engine.mesh import make_mesh, place_params
from termrl.engine.programs import Programs
from termrl.engine.weights import load_model

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BaseModel:
    """A loaded model. `tokenizer_id` is what the SDK's `get_tokenizer` can open: the directory."""

    name: str
    directory: Path
    config: LlamaConfig
    params: Params
    mesh: Mesh | None = None
    """The devices its weights are spread over, where there are several."""
    programs: Programs = field(default_factory=Programs, repr=False, compare=False)

    @property
    def tokenizer_id(self) -> str:
        # The SDK takes a name with two slashes for org/model/variant, and drops the last part.
        path = str(self.directory)
        return f"{path}/" if path.count("/") == 2 else path

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.directory / "tokenizer.json"))


def load_base_model(name: str, dtype: str = "float32", tensor_parallel: int = 1) -> BaseModel:
    """Loads a model; as bfloat16 its matrices take half the memory and its products are rounded."""
    directory = resolve_model(name, _log.info)
    config, params = load_model(directory)
    if dtype != "float32":
        params = jax.tree.map(lambda x: x.astype(dtype) if x.ndim > 1 and x.shape[-1] > 1 else x, params)
        norms = ("attn_norm", "mlp_norm", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm")
        kept = {field: getattr(params.layers, field) for field in norms}
        exact = {field: value.astype(jnp.float32) for field, value in kept.items() if value is not None}
        params = params._replace(layers=params.layers._replace(**exact))
    mesh = make_mesh(tensor_parallel)
    return BaseModel(name, directory, config, place_params(params, mesh), mesh)
