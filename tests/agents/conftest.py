import importlib.util
from pathlib import Path
from typing import Any

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "rollout_conftest", Path(__file__).parents[1] / "rollout" / "conftest.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
_ROLLOUT = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_ROLLOUT)

tokenizer = _ROLLOUT.tokenizer
renderer = _ROLLOUT.renderer
bench = _ROLLOUT.bench


@pytest.fixture
def call() -> Any:
    """What a model that speaks ChatML's tool format would say to run a command."""

    def make(command: str, **arguments: Any) -> str:
        import json

        body = json.dumps({"name": "bash", "arguments": {"command": command, **arguments}})
        return f"<tool_call>\n{body}\n</tool_call>"

    return make
