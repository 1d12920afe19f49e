"""The machines that rollouts run in. What others build on is here; the rest of the room is its own business.

Names are loaded when they are asked for: Harbor is heavy, and the protocol has nothing to do with it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from termrl.sandbox.factory import default_sandbox_factory, honours
    from termrl.sandbox.interface import HarborSandbox, SandboxFactory, SandboxInterface, SandboxResult
    from termrl.sandbox.modal import ModalSandbox

__all__ = [
    "HarborSandbox",
    "ModalSandbox",
    "SandboxFactory",
    "SandboxInterface",
    "SandboxResult",
    "default_sandbox_factory",
    "honours",
]
_HOMES = {
    "default_sandbox_factory": "factory",
    "honours": "factory",
    "ModalSandbox": "modal",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'termrl.sandbox' has no attribute '{name}'")
    return getattr(importlib.import_module(f"termrl.sandbox.{_HOMES.get(name, 'interface')}"), name)
