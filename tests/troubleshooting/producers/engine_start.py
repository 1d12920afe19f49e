"""Messages of docs/troubleshooting.md: what the engine says of its models and its address."""

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from producers import Place, Producer, said_by, says
from termrl.engine.catalog import resolve_model
from termrl.engine.gguf_files import convert_gguf
from termrl.engine.keys import KEY_VARIABLE
from termrl.engine.mesh import make_mesh
from termrl.engine.weights import load_model

said_by(
    "Serving on … needs a key of your own: put tml- and any long secret into ….",
    "engine",
    "serve",
    "host=0.0.0.0",
)


@says("The engine's key must start with …, as the SDK wants it.")
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv(KEY_VARIABLE, "secret")
    return ["engine", "serve", "port=0"]


@says("The engine cannot listen on …:…: ….")
def _(place: Place) -> list[str]:
    taken = place.open.enter_context(socket.socket())
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    return ["engine", "serve", f"port={taken.getsockname()[1]}"]


@says("… devices cannot be split into groups of ….")
def _(place: Place) -> None:
    make_mesh(1000)


CONFIGS: dict[str, dict[str, Any]] = {
    "The engine runs models of type …, not …; choose another model.": {"model_type": "mamba"},
    "The engine has no such biases for the type …, but config.json asks for them.": {"mlp_bias": True},
    "The engine has no sliding-window attention, but config.json asks for it.": {"use_sliding_window": True},
    "The engine computes SwiGLU (silu), but config.json asks for ….": {"hidden_act": "gelu"},
    "config.json has … heads in a hidden size of ….": {"num_attention_heads": 7, "head_dim": None},
    "config.json has no …, which the engine needs.": {"vocab_size": None},
    "The engine has the rotary scaling 'llama3' only, but config.json asks for …; choose another model.": {
        "rope_scaling": {"rope_type": "yarn"}
    },
    "The tensor … in … has shape …, config.json says ….": {"intermediate_size": 7},
    "The weights in … have no tensor ….": {"num_hidden_layers": 99},
}


def _config(changes: dict[str, Any]) -> Producer:
    def load(place: Place) -> None:
        """The tiny model, with this in its config.json."""
        model = resolve_model("termrl/tiny")
        config = json.loads((model / "config.json").read_text()) | changes
        text = json.dumps({key: value for key, value in config.items() if value is not None})
        place.file("model/config.json", text)
        for weights in model.glob("*.safetensors"):
            (place.path / "model" / weights.name).symlink_to(weights)
        load_model(place.path / "model")

    return load


for message, changes in CONFIGS.items():
    says(message)(_config(changes))


@says("The model directory … has no config.json.")
def _(place: Place) -> None:
    load_model(place.path)


@says("… is not JSON: ….")
def _(place: Place) -> None:
    place.file("config.json", "{")
    load_model(place.path)


def with_weights(place: Place) -> Path:
    text = (resolve_model("termrl/tiny") / "config.json").read_text()
    return place.file("config.json", text).parent


@says("The model directory … has no *.safetensors file.")
def _(place: Place) -> None:
    load_model(with_weights(place))


@says("… cannot be read as safetensors: ….")
def _(place: Place) -> None:
    place.file("model.safetensors", "no")
    load_model(with_weights(place))


def convert(place: Place, architecture: str, fields: dict[str, Any], *tensors: str) -> None:
    """A GGUF file with these fields and tensors of one number."""
    writer = GGUFWriter(place.path / "model.gguf", architecture)
    for name, value in fields.items():
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    for name in tensors:
        writer.add_tensor(name, np.zeros((1, 1), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert_gguf(place.path / "model.gguf", place.path / "out")


SIZES = {
    "llama.attention.head_count": 1,
    "llama.embedding_length": 2,
    "llama.feed_forward_length": 2,
    "llama.block_count": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.context_length": 8,
}
WORDS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["a", "b", "ab"],
    "tokenizer.ggml.merges": ["a b"],
}


@says("… cannot be read as GGUF: ….")
def _(place: Place) -> None:
    convert_gguf(place.file("model.gguf", "no"), place.path / "out")


@says("… has no …, which the engine needs.")
def _(place: Place) -> None:
    convert(place, "llama", {}, "a")


@says("The engine runs models of type llama, qwen2, qwen3, but … is ….")
def _(place: Place) -> None:
    convert(place, "mamba", {}, "a")


@says("… is a mixture of experts; the engine runs dense models.")
def _(place: Place) -> None:
    convert(place, "llama", {}, "blk.0.ffn_gate_exps.weight")


@says("The engine has no rotary scaling …, but … asks for it.")
def _(place: Place) -> None:
    convert(place, "llama", {**SIZES, "llama.rope.scaling.type": "yarn"}, "a")


@says("… has a tokenizer … (…); the engine reads 'gpt2' with one of … from GGUF. …")
def _(place: Place) -> None:
    convert(place, "llama", {**SIZES, "tokenizer.ggml.model": "bert"}, "a")


@says("… has a tensor … that the engine would have to ignore.")
def _(place: Place) -> None:
    convert(place, "llama", {**SIZES, **WORDS}, "a")
