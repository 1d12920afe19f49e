import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_TESTS = Path(__file__).parents[1]
_ROLLOUT = _load("rollout_conftest", _TESTS / "rollout" / "conftest.py")

tokenizer = _ROLLOUT.tokenizer
renderer = _ROLLOUT.renderer
bench = _ROLLOUT.bench


@pytest.fixture(scope="session")
def checkpoints() -> ModuleType:
    return _load("checkpoints", _TESTS / "agents" / "checkpoints.py")


@pytest.fixture(scope="session")
def docker_engine() -> ModuleType:
    return _load("engine", _TESTS / "sandbox" / "engine.py")


@pytest.fixture
def call() -> Any:
    """What a model that speaks ChatML's tool format would say to run a command."""

    def make(command: str, **arguments: Any) -> str:
        import json

        body = json.dumps({"name": "bash", "arguments": {"command": command, **arguments}})
        return f"<tool_call>\n{body}\n</tool_call>"

    return make
