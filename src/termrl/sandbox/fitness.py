"""Refuses, before anything starts, tasks that the chosen backend can't honour: by the task's name and why.

The environment of each task is made, which runs every check that Harbor and the backend have, and thrown
away without being started.
"""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import NetworkPolicy, TaskConfig
from harbor.models.trial.paths import TrialPaths

from termrl.errors import UserError
from termrl.sandbox.backends import Backend
from termrl.sandbox.errors import UnsupportedEnvironment


class Task(Protocol):
    @property
    def task_name(self) -> str: ...

    @property
    def task_dir(self) -> Path: ...

    @property
    def config(self) -> TaskConfig: ...


def refuse_unfit(tasks: Iterable[Task], backend: Backend) -> None:
    """Raises the first refusal, as a sentence that names the task and what it asks for."""
    with TemporaryDirectory(prefix="termrl-fitness-") as folder:
        paths = TrialPaths(Path(folder))
        for task in tasks:
            _refuse(task, backend, paths)


def _refuse(task: Task, backend: Backend, paths: TrialPaths) -> None:
    config = task.config.model_copy(deep=True)
    baseline = config.environment.resolve_baseline()
    phases = _phases(config, baseline)
    try:
        environment = EnvironmentFactory.create_environment_from_config(
            config=backend.environment_config(config),
            environment_dir=task.task_dir / "environment",
            environment_name=task.task_name.rpartition("/")[2],
            session_id="fitness",
            trial_paths=paths,
            task_env_config=config.environment,
            network_policy=baseline,
            phase_network_policies=phases,
        )
        if any(phase != baseline for phase in phases) and not environment.capabilities.dynamic_network_policy:
            raise UnsupportedEnvironment(
                f"Task {task.task_name} changes its network between phases, which "
                f"environment_type={backend.name} can't: use environment_type=docker."
            )
    except UserError:
        raise
    except (ValueError, RuntimeError, OSError, TypeError) as error:
        raise UnsupportedEnvironment(
            f"Task {task.task_name} can't run with environment_type={backend.name}: "
            f"{' '.join(str(error).split())}"
        ) from error


def _phases(config: TaskConfig, baseline: NetworkPolicy) -> list[NetworkPolicy]:
    phases = [
        config.agent,
        config.verifier,
        *(part for step in config.steps or () for part in (step.agent, step.verifier)),
    ]
    policies = [
        NetworkPolicy(network_mode=mode, allowed_hosts=list(getattr(phase, "allowed_hosts", None) or []))
        for phase in phases
        if (mode := getattr(phase, "network_mode", None)) is not None
    ]
    return policies or [baseline]
