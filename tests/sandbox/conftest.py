import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HARBOR_TELEMETRY", "off")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox.client import KeeperClient
from termrl.sandbox.local import LocalEnvironment

MakeSandbox = Callable[..., LocalEnvironment]
CommandsIn = Callable[[LocalEnvironment], Awaitable[list[str]]]


@pytest.fixture(scope="session")
def layers_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layers")


@pytest.fixture(scope="session")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system of this host's own programs, as small as an image can be."""
    root = tmp_path_factory.mktemp("small-root")
    script = Path(__file__).parents[2] / "scripts" / "small_root.py"
    subprocess.run([sys.executable, str(script), str(root)], check=True)
    return root


@pytest.fixture
def make_sandbox(tmp_path: Path, layers_dir: Path) -> MakeSandbox:
    """Builds an environment for a task directory made up on the spot; the test starts and stops it."""
    made = iter(range(1000))

    def make(
        dockerfile: str | None = "FROM termrl/host\nWORKDIR /app\n",
        files: dict[str, str] | None = None,
        network: NetworkMode = NetworkMode.NO_NETWORK,
        config: dict[str, Any] | None = None,
        prepare: Callable[[Path], object] = lambda folder: None,
        **options: Any,
    ) -> LocalEnvironment:
        task = tmp_path / f"task-{next(made)}"
        environment_dir = task / "environment"
        environment_dir.mkdir(parents=True)
        if dockerfile is not None:
            (environment_dir / "Dockerfile").write_text(dockerfile)
        for name, text in (files or {}).items():
            path = environment_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        prepare(environment_dir)
        trial_paths = TrialPaths(task / "trial")
        trial_paths.mkdir()
        return LocalEnvironment(
            environment_dir=environment_dir,
            environment_name=task.name,
            session_id=f"{task.name}__env",
            trial_paths=trial_paths,
            task_env_config=EnvironmentConfig(**(config or {})),
            network_policy=NetworkPolicy(network_mode=network),
            **{"layers_dir": str(layers_dir), **options},
        )

    return make


@pytest.fixture
async def sandbox(make_sandbox: MakeSandbox) -> AsyncIterator[LocalEnvironment]:
    environment = make_sandbox()
    await environment.start(force_build=False)
    yield environment
    await environment.stop(delete=True)


@pytest.fixture(autouse=True)
async def keeper_ends() -> AsyncIterator[None]:
    yield
    (await KeeperClient.of_this_loop()).close()


@pytest.fixture
def commands_in() -> CommandsIn:
    """The command lines running in a sandbox, read with nothing but the shell."""

    async def commands(sandbox: LocalEnvironment) -> list[str]:
        listing = "for f in /proc/[0-9]*/cmdline; do { tr '\\0' ' ' < $f; echo; } 2>/dev/null; done"
        lines = ((await sandbox.exec(listing)).stdout or "").splitlines()
        return [line.strip() for line in lines if line.strip() and "/proc/[0-9]*" not in line]

    return commands
