"""termrl trains and evaluates open-weight models as terminal agents on Harbor tasks."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Read by the libraries when they are imported: none of them reports home or fetches price lists by itself.
os.environ.setdefault("HARBOR_TELEMETRY", "off")
os.environ.setdefault("TINKER_TELEMETRY", "0")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

if TYPE_CHECKING:
    from termrl.api import evaluate, train
    from termrl.config import EvalConfig, TrainConfig
    from termrl.evaluate.results import EvalResult
    from termrl.sandbox.interface import SandboxInterface, SandboxResult
    from termrl.tasks import HarborTask, load_harbor_tasks

_HOMES = {
    "EvalConfig": "termrl.config",
    "EvalResult": "termrl.evaluate.results",
    "HarborTask": "termrl.tasks",
    "SandboxInterface": "termrl.sandbox.interface",
    "SandboxResult": "termrl.sandbox.interface",
    "TrainConfig": "termrl.config",
    "load_harbor_tasks": "termrl.tasks",
    "train": "termrl.api",
}
__all__ = [
    "EvalConfig",
    "EvalResult",
    "HarborTask",
    "SandboxInterface",
    "SandboxResult",
    "TrainConfig",
    "__version__",
    "evaluate",
    "load_harbor_tasks",
    "train",
]


def __getattr__(name: str) -> Any:
    """Names are imported when they are asked for: the command line answers before anything heavy loads."""
    if name == "evaluate":
        return import_module("termrl.evaluate")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'termrl' has no attribute {name!r}")
