"""How long a sandbox has to live: long enough for every phase of its task, and then a little.

A sandbox that ends by itself before the verifier does loses a rollout; one that never ends costs money after
a crash. `sandbox_timeout=` overrides.
"""

import math
import tomllib
from functools import lru_cache
from pathlib import Path

from harbor.models.task.config import TaskConfig

from termrl.sandbox.errors import UnsupportedEnvironment

MARGIN_SECONDS = 300
AGENT_SETUP_SECONDS = 360
"""What Harbor gives an agent to install itself."""
UNLIMITED_AGENT_SECONDS = 24 * 3600
"""Counted for an agent whose task sets no limit."""


def task_config_beside(environment_dir: Path) -> TaskConfig:
    """The task.toml of the task that `environment_dir` belongs to; an empty one where there is none."""
    path = environment_dir.parent / "task.toml"
    if not path.is_file():
        return TaskConfig()
    return _read(path, path.stat().st_mtime_ns).model_copy(deep=True)


@lru_cache(maxsize=4096)
def _read(path: Path, changed: int) -> TaskConfig:
    try:
        return TaskConfig.model_validate(tomllib.loads(path.read_text()))
    except (ValueError, OSError) as error:
        raise UnsupportedEnvironment(f"{path} can't be read as a task.toml: {error}") from error


def lifetime_seconds(config: TaskConfig, agent_timeout: float | None = None) -> int:
    """Build, set-up, every step's agent and verifier, and a margin."""
    agent = agent_timeout or config.agent.timeout_sec
    phases = config.environment.build_timeout_sec + AGENT_SETUP_SECONDS + MARGIN_SECONDS
    steps = [(step.agent.timeout_sec, step.verifier.timeout_sec) for step in config.steps or ()]
    for own_agent, own_verifier in steps or [(agent, config.verifier.timeout_sec)]:
        phases += own_agent or agent or UNLIMITED_AGENT_SECONDS
        phases += own_verifier or config.verifier.timeout_sec or 0
    return math.ceil(phases)
