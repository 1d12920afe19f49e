import json
from typing import Any

import pytest

from scripted_fixtures import bench, renderer, tokenizer

__all__ = ["bench", "renderer", "tokenizer"]


@pytest.fixture
def call() -> Any:
    """What a model that speaks ChatML's tool format would say to run a command."""

    def make(command: str, **arguments: Any) -> str:
        body = json.dumps({"name": "bash", "arguments": {"command": command, **arguments}})
        return f"<tool_call>\n{body}\n</tool_call>"

    return make
