"""An empty place in which messages are made, and the one engine that some of them need."""

import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

os.environ.setdefault("TINKER_TELEMETRY", "0")

import pytest
from anyio.from_thread import start_blocking_portal
from producers import Place

from termrl.engine.process import EngineHandle, start_engine


@pytest.fixture(scope="session")
def engine(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[EngineHandle]:
    directory = tmp_path_factory.mktemp("engine")
    cache_dir: Path = request.config.cache.mkdir("jax")
    started = start_engine(
        directory / "state", models=["termrl/tiny"], log_path=directory / "log", cache_dir=cache_dir
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(started) as handle:
        yield handle


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", StringIO(""))
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    place = Place(tmp_path, monkeypatch, lambda: request.getfixturevalue("engine"))
    with place.open:
        yield place
