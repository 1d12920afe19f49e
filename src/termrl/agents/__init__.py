"""Agents: the loops that turn model answers into terminal actions.

`termrl.agents:Terminus` is for Harbor's own command line; it is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from termrl.agents.plugin import Terminus

__all__ = ["Terminus"]


def __getattr__(name: str) -> Any:
    if name == "Terminus":
        from termrl.agents.plugin import Terminus

        return Terminus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
