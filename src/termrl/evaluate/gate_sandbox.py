"""Where a check's sandboxes run: the environment that `environment_type` names, ready or refused."""

from pathlib import Path

from harbor.models.trial.config import EnvironmentConfig

from termrl.rollout.runner import _environment_config
from termrl.rollout.settings import RolloutSettings
from termrl.sandbox.preflight import require_local


def sandbox_of(environment_type: str) -> EnvironmentConfig:
    """Raises a `UserError` for a type there isn't, and for a machine that cannot run it."""
    if environment_type == "local":
        require_local()
    return _environment_config(
        RolloutSettings("", Path(), max_turns=1, max_tokens=1, context_limit=1, environment=environment_type)
    )
