"""The built-in tasks are written below a directory of the test session, never into the user's cache."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def task_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
