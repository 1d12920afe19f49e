"""A small random model, and one engine process on it that the tests of this room share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

os.environ.setdefault("TINKER_TELEMETRY", "0")

import jax
import pytest
import tinker
from anyio.from_thread import start_blocking_portal
from tokenizers import Tokenizer, decoders, models

from termrl.engine.architecture import LlamaConfig
from termrl.engine.compilation import set_up_jax
from termrl.engine.llama import Params, init_params
from termrl.engine.models import BaseModel, load_base_model
from termrl.engine.process import EngineHandle, start_engine
from termrl.engine.weights import save_model

CONFIG = LlamaConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=320,
    bos_token_id=0,
    eos_token_ids=(1,),
)


def lively_params(config: LlamaConfig = CONFIG, seed: int = 0) -> Params:
    """Random weights big enough for the tokens' probabilities to differ."""
    return jax.tree.map(lambda x: x * 8.0 if x.ndim > 1 else x, init_params(config, seed))


def write_model(directory: Path) -> Path:
    save_model(directory, CONFIG, lively_params())
    words = {"<bos>": 0, "<eos>": 1} | {f"w{i} ": i for i in range(2, CONFIG.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": "<eos>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture(scope="session")
def cache_dir(request: pytest.FixtureRequest) -> Path:
    """Compiled programs, kept from one test run to the next."""
    directory: Path = request.config.cache.mkdir("jax")
    return directory


@pytest.fixture(scope="session", autouse=True)
def _jax(cache_dir: Path) -> None:
    set_up_jax(cache_dir)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def base(model_dir: Path) -> BaseModel:
    return load_base_model(str(model_dir))


@pytest.fixture(scope="session")
def engine(
    tmp_path_factory: pytest.TempPathFactory, model_dir: Path, cache_dir: Path
) -> Iterator[EngineHandle]:
    directory = tmp_path_factory.mktemp("engine")
    started = start_engine(
        directory / "state", models=[str(model_dir)], log_path=directory / "log", cache_dir=cache_dir
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(started) as handle:
        yield handle


@pytest.fixture(scope="session")
def connect() -> Callable[[EngineHandle], tinker.ServiceClient]:
    return lambda handle: tinker.ServiceClient(base_url=handle.base_url, api_key=handle.api_key)


@pytest.fixture
def service(
    engine: EngineHandle, connect: Callable[[EngineHandle], tinker.ServiceClient]
) -> Iterator[tinker.ServiceClient]:
    client = connect(engine)
    yield client
    client.close("success").result()


@pytest.fixture
def restartable(
    tmp_path: Path,
    model_dir: Path,
    cache_dir: Path,
    connect: Callable[[EngineHandle], tinker.ServiceClient],
) -> Callable[[], AbstractContextManager[tuple[tinker.ServiceClient, Path]]]:
    """Starts an engine anew on the same state directory, as often as it is called."""

    @contextmanager
    def start() -> Iterator[tuple[tinker.ServiceClient, Path]]:
        state = tmp_path / "state"
        started = start_engine(state, models=[str(model_dir)], log_path=tmp_path / "log", cache_dir=cache_dir)
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(started) as handle:
            client = connect(handle)
            yield client, state
            client.close("success").result()

    return start
