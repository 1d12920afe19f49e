"""Names of models and the directories behind them.

A model is `termrl/tiny`, which ships with the package, or a local directory in Hugging Face's layout:
config.json, *.safetensors and tokenizer.json. What is missing is said in one sentence before anything loads.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from termrl.engine.llama import LlamaConfig, Params
from termrl.engine.weights import ModelFilesError, load_model

PACKAGED = {"termrl/tiny": Path(__file__).parent / "tiny"}


@dataclass(frozen=True)
class BaseModel:
    """A loaded model. `tokenizer_id` is what the SDK's `get_tokenizer` can open: the directory."""

    name: str
    directory: Path
    config: LlamaConfig
    params: Params

    @property
    def tokenizer_id(self) -> str:
        return str(self.directory)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_file(str(self.directory / "tokenizer.json"))


def resolve_model(name: str) -> Path:
    """The absolute directory of a model, complete as far as its list of files shows."""
    directory = PACKAGED.get(name)
    if directory is None:
        directory = Path(name).expanduser().absolute()
        if not directory.is_dir():
            known = ", ".join(PACKAGED)
            raise ModelFilesError(
                f"There is no model {name!r}: give one of {known}, or the path of a local model directory."
            )
    missing = []
    if not (directory / "config.json").is_file():
        missing.append("config.json")
    if not any(directory.glob("*.safetensors")):
        missing.append("weights (*.safetensors)")
    if not (directory / "tokenizer.json").is_file():
        missing.append("a tokenizer (tokenizer.json)")
    if missing:
        raise ModelFilesError(
            f"The model directory {directory} is incomplete: it has no {', no '.join(missing)}."
        )
    return directory


def load_base_model(name: str) -> BaseModel:
    directory = resolve_model(name)
    config, params = load_model(directory)
    return BaseModel(name=name, directory=directory, config=config, params=params)
