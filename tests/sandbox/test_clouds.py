"""Daytona through its own client, against a loopback server whose sandboxes are real ones."""

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox.backends import Backend
from termrl.sandbox.freezing import AgentTools, find_snapshots, freeze
from termrl.sandbox.labels import labelled_run
from termrl.sandbox.readiness import check_backend
from termrl.sandbox.snapshots import SnapshotStore, hand_over
from termrl.sandbox.snapshotters import snapshotter_for
from termrl.tasks.task import HarborTask, load_harbor_task


def load(name: str) -> ModuleType:
    import sys

    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def daytona(tmp_path: Path, layers_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    server = load("daytona_server")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    async with server.serve(tmp_path / "daytona", layers_dir) as service:
        monkeypatch.setenv("DAYTONA_API_KEY", server.KEY)
        monkeypatch.setenv("DAYTONA_API_URL", f"{service.url}/api")
        monkeypatch.setenv("DAYTONA_TARGET", "us")
        yield service


def write_task(folder: Path) -> HarborTask:
    files = {
        "task.toml": '[environment]\nenv = { TASK = "yes" }\n',
        "instruction.md": "x\n",
        "tests/test.sh": "true\n",
        "environment/Dockerfile": "FROM termrl/host\nRUN echo built > /built\n",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return load_harbor_task(folder)


def environment_of(task: HarborTask, backend: Backend, folder: Path) -> BaseEnvironment:
    paths = TrialPaths(folder / "trial")
    paths.mkdir()
    return EnvironmentFactory.create_environment_from_config(
        config=backend.environment_config(task.config),
        environment_dir=task.task_dir / "environment",
        environment_name="cloudy",
        session_id="cloudy",
        trial_paths=paths,
        task_env_config=task.config.environment.model_copy(),
    )


async def test_daytona_is_built_snapshotted_and_started_from_through_its_own_client(
    daytona: Any, tmp_path: Path
) -> None:
    assert check_backend("daytona").ok
    task = write_task(tmp_path / "task")

    async def prepare(environment: BaseEnvironment) -> None:
        assert (await environment.exec("cat /built; echo tool > /tool")).stdout == "built\n"

    with labelled_run("cloud"):
        (built,) = await freeze([task], Backend("daytona"), tools=AgentTools("tool", prepare))
    assert (built.state, built.detail) == ("built", "")
    assert daytona.created[0]["labels"]["termrl.run"] == "cloud"
    assert daytona.deleted, "the sandbox that was snapshotted was left running"
    (record,) = SnapshotStore().all()
    assert list(daytona.snapshots) == [record.handle]
    found = await find_snapshots([task], Backend("daytona"), "tool")
    assert found.hits == (task.task_name,)
    frozen = Backend("daytona", {"snapshots": hand_over(found.handles)})
    sandbox = environment_of(task, frozen, tmp_path)
    await sandbox.start(force_build=False)
    assert (await sandbox.exec("cat /built /tool; echo $TASK; exit 3")).model_dump() == {
        "stdout": "built\ntool\nyes\n",
        "stderr": "",
        "return_code": 3,
    }
    assert daytona.created[-1]["snapshot"] == record.handle
    await sandbox.stop(delete=True)
    assert not daytona.machines
    await snapshotter_for(Backend("daytona")).destroy(record.handle)
    assert (await find_snapshots([task], Backend("daytona"), "tool")).misses == (task.task_name,)
