"""The one tree of settings, checked before anything is paid for.

A setting is a field here with its one-line description; that one place makes it a `key=value` on the
command line, a line of `--help`, a key of a settings file and a row of docs/settings.md. Settings that
contradict each other are refused when the tree is made. Reading them is `termrl.settings`.
"""

from termrl.config.aliases import ALIASES
from termrl.config.bounds import ContradictionError
from termrl.config.evaluation import EvalConfig
from termrl.config.rollouts import RolloutConfig
from termrl.config.training import ShapingConfig, TrainConfig, WandbConfig, WarmupConfig

__all__ = [
    "ALIASES",
    "ContradictionError",
    "EvalConfig",
    "RolloutConfig",
    "ShapingConfig",
    "TrainConfig",
    "WandbConfig",
    "WarmupConfig",
]
