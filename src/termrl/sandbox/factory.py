"""Sandbox factories: how one says what it honours, and the default one.

A factory is handed the task's `environment/` directory and a lifetime. Limits, image, network and so on stand
in the task.toml beside it; what a factory does not say it honours is refused before it is called, because a
limit that is silently ignored changes what the task is.
"""

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harbor.models.task.config import EnvironmentConfig, NetworkMode, TaskConfig
from harbor.models.trial.paths import TrialPaths
from harbor.utils.import_path import import_symbol

from termrl.sandbox.errors import UnknownBackend, UnsupportedEnvironment
from termrl.sandbox.interface import HarborSandbox, SandboxFactory
from termrl.sandbox.lifetime import task_config_beside

ASKABLE = (
    *("dockerfile", "docker_image", "docker_compose", "cpus", "memory_mb", "storage_mb"),
    *("gpus", "tpu", "no-network", "allowlist", "windows"),
)
"""What a task can ask of whoever makes its sandbox; variables, users and directories are the bridge's."""
ASSUMED = frozenset({"dockerfile"})
"""What a factory that says nothing is taken to do: build the directory that it is handed."""

_handed_over: dict[str, SandboxFactory] = {}
_numbers = itertools.count(1)


def honours(*names: str) -> Callable[[SandboxFactory], SandboxFactory]:
    """Declares what the factory below does about a task.toml: `@honours("dockerfile", "cpus")`."""
    for name in names:
        if name not in ASKABLE:
            raise ValueError(f"'{name}' is nothing a task asks for; there are {', '.join(ASKABLE)}")

    def declare(factory: SandboxFactory) -> SandboxFactory:
        factory.honours = frozenset(names)  # type: ignore[attr-defined]
        return factory

    return declare


def honoured_by(factory: SandboxFactory) -> frozenset[str]:
    return frozenset(getattr(factory, "honours", ASSUMED))


def asked_of(environment: EnvironmentConfig, environment_dir: Path, network_mode: NetworkMode) -> list[str]:
    """What this environment needs of the factory, in the words of `ASKABLE`."""
    asked = [
        name
        for name in ("docker_image", "cpus", "memory_mb", "storage_mb", "gpus", "tpu")
        if getattr(environment, name)
    ]
    if (environment_dir / "docker-compose.yaml").exists():
        asked.append("docker_compose")
    elif (environment_dir / "Dockerfile").exists() and not environment.docker_image:
        asked.append("dockerfile")
    if network_mode is NetworkMode.NO_NETWORK:
        asked.append("no-network")
    if network_mode is NetworkMode.ALLOWLIST:
        asked.append("allowlist")
    if environment.os.value == "windows":
        asked.append("windows")
    return asked


def refuse_what_it_ignores(factory: SandboxFactory, asked: list[str], task: str) -> None:
    ignored = [name for name in asked if name not in honoured_by(factory)]
    if ignored:
        name = getattr(factory, "__qualname__", type(factory).__qualname__)
        raise UnsupportedEnvironment(
            f"Task {task} asks for {', '.join(ignored)}, "
            f"which the sandbox factory {name} does not say it honours: "
            f"declare it with @honours({', '.join(map(repr, ignored))}) once it does, "
            "or use environment_type=docker."
        )


def hand_over(factory: SandboxFactory) -> str:
    """A name for a live factory: Harbor's settings are JSON, so an object can't travel in them."""
    for name, known in _handed_over.items():
        if known is factory:
            return name
    name = f"live-{next(_numbers)}"
    _handed_over[name] = factory
    return name


def factory_named(name: str) -> SandboxFactory:
    """The factory that was handed over under this name, or the one at this import path."""
    if name in _handed_over:
        return _handed_over[name]
    factory: SandboxFactory = import_symbol(name)
    if not callable(factory):
        raise UnknownBackend(f"{name} is not a sandbox factory: it can't be called.")
    return factory


@honours("dockerfile", "docker_image", "cpus", "memory_mb", "storage_mb", "no-network")
async def default_sandbox_factory(environment_dir: Path, timeout: int) -> HarborSandbox:
    """A sandbox of the default kind, `local`, with all that the task.toml beside the directory asks for."""
    from termrl.sandbox.local import LocalEnvironment

    arguments, folder = environment_arguments(environment_dir)
    environment = LocalEnvironment(**arguments, lifetime=timeout)
    await environment.start(force_build=False)
    return HarborSandbox(environment, ended=folder.cleanup)


def environment_arguments(environment_dir: Path) -> tuple[dict[str, Any], TemporaryDirectory[str]]:
    """What Harbor makes an environment from outside of a trial, and the directory that stands in for it."""
    config: TaskConfig = task_config_beside(environment_dir)
    folder = TemporaryDirectory(prefix="termrl-")
    paths = TrialPaths(Path(folder.name))
    paths.mkdir()  # type: ignore[no-untyped-call]
    name = environment_dir.parent.name
    arguments = {
        "environment_dir": environment_dir,
        "environment_name": name,
        "session_id": f"{name}-{uuid.uuid4().hex[:8]}",
        "trial_paths": paths,
        "task_env_config": config.environment,
        "network_policy": config.environment.resolve_baseline(),
    }
    return arguments, folder
