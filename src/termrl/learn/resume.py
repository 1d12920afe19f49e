"""Going on with a run: its own settings hold, and only what cannot change its past may be changed.

A run that is named again needs nothing else said. Settings said again must agree with those it was started
with, save for how long it goes on and how it is run on this machine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from termrl.config import TrainConfig
from termrl.errors import UserError
from termrl.settings.again import settings_again

MAY_CHANGE = frozenset(
    {
        "behavior_if_run_exists",
        "base_url",
        "checkpoint_ttl_hours",
        "dry_run",
        "eval_every",
        "log_level",
        "max_cost",
        "max_hours",
        "max_minutes",
        "max_steps",
        "max_tokens_total",
        "n_epochs",
        "n_parallel_envs",
        "prices",
        "rolling_save_every",
        "run_name",
        "run_root",
        "save_every",
        "wandb.enabled",
        "wandb.entity",
        "wandb.project",
        "wandb.run_name",
    }
)


class RunExistsError(UserError):
    """The run is there already and was not to be gone on with."""


class SettingsChangedError(UserError):
    """A run was named again with settings that would make its past another one's."""


def settle(stored: Mapping[str, Any], said: Mapping[str, Any]) -> TrainConfig:
    """The settings to go on with: those stored, with what was said now over them."""
    return settings_again(
        stored,
        said,
        TrainConfig,
        may_change=MAY_CHANGE,
        began="The run was started",
        refusal=SettingsChangedError,
    )


def free_name(path: Path) -> str:
    """The name of a run beside this one that there is none of yet."""
    number = 2
    while (path.parent / f"{path.name}-{number}").exists():
        number += 1
    return f"{path.name}-{number}"
