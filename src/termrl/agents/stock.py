"""Harbor's Terminus-2, imported without litellm.

Importing it the usual way imports litellm, which takes seconds of CPU and 140 MB, for a backend that is
never built here. While it is imported, the two Harbor modules that need litellm are stood in for;
afterwards the stand-ins are gone, and a LiteLLM that anyone does build is the real one.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["Command", "ParseResult", "ParsedCommand", "Terminus2", "Terminus2Options", "TmuxSession"]


class DeferredLiteLLM:
    """Builds Harbor's LiteLLM, importing it only now."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        from harbor.llms.lite_llm import LiteLLM

        return LiteLLM(*args, **kwargs)


def configure_litellm_debug(*, debug: bool = False) -> None:
    from harbor.llms import litellm_config

    litellm_config.configure_litellm_debug(debug=debug)


@contextmanager
def litellm_deferred() -> Iterator[None]:
    """For the length of the block, importing Harbor's LiteLLM gives the deferred one."""
    stand_ins: dict[str, ModuleType] = {}
    for name, attribute, value in (
        ("harbor.llms.lite_llm", "LiteLLM", DeferredLiteLLM),
        ("harbor.llms.litellm_config", "configure_litellm_debug", configure_litellm_debug),
    ):
        if name not in sys.modules:
            stand_in = ModuleType(name)
            setattr(stand_in, attribute, value)
            stand_ins[name] = sys.modules[name] = stand_in
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


with litellm_deferred():
    from harbor.agents.terminus_2.terminus_2 import Command, Terminus2, Terminus2Options
    from harbor.agents.terminus_2.terminus_json_plain_parser import ParsedCommand, ParseResult
    from harbor.agents.terminus_2.tmux_session import TmuxSession
