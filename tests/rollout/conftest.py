from collections.abc import Callable

import pytest

from scripted_bench import SAY_HELLO, answer
from scripted_fixtures import bench, renderer, tokenizer

__all__ = ["bench", "renderer", "tokenizer"]


@pytest.fixture
def say() -> Callable[..., str]:
    return answer


@pytest.fixture
def say_hello() -> list[str]:
    return list(SAY_HELLO)
