"""A base model as the engine holds it: configuration, parameters and tokenizer of one directory."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from termrl.engine.catalog import resolve_model
from termrl.engine.llama import LlamaConfig, Params
from termrl.engine.weights import load_model


@dataclass(frozen=True)
class BaseModel:
    """A loaded model. `tokenizer_id` is what the SDK's `get_tokenizer` can open: the directory."""

    name: str
    directory: Path
    config: LlamaConfig
    params: Params

    @property
    def tokenizer_id(self) -> str:
        # The SDK takes a name with two slashes for org/model/variant, and drops the last part.
        path = str(self.directory)
        return f"{path}/" if path.count("/") == 2 else path

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.directory / "tokenizer.json"))


def load_base_model(name: str) -> BaseModel:
    directory = resolve_model(name)
    config, params = load_model(directory)
    return BaseModel(name=name, directory=directory, config=config, params=params)
