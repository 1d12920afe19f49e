"""Daytona and Modal through their own clients, against loopback servers whose sandboxes are real ones."""

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
from termrl.sandbox.modal import ModalSandbox, modal_sandbox_factory
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


@pytest.fixture
async def modal(tmp_path: Path, layers_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    from modal.client import Client

    server = load("modal_server")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    async with server.serve(tmp_path / "modal", layers_dir) as service:
        monkeypatch.setenv("MODAL_SERVER_URL", f"http://127.0.0.1:{service.port}")
        monkeypatch.setenv("MODAL_TOKEN_ID", server.TOKEN[0])
        monkeypatch.setenv("MODAL_TOKEN_SECRET", server.TOKEN[1])
        monkeypatch.setenv("MODAL_SANDBOX_V2", "1")  # which Harbor sets, and leaves set
        yield service
        await (await Client.from_env.aio())._close.aio()


async def test_modal_is_built_snapshotted_and_started_from_through_its_own_client(
    modal: Any, tmp_path: Path
) -> None:
    assert check_backend("modal").ok, check_backend("modal").detail
    task = write_task(tmp_path / "task")
    backend = Backend("modal")

    async def prepare(environment: BaseEnvironment) -> None:
        assert (await environment.exec("cat /built; echo tool > /tool")).stdout == "built\n"

    with labelled_run("cloud"):
        (built,) = await freeze([task], backend, tools=AgentTools("tool", prepare))
    assert (built.state, built.detail) == ("built", "")
    assert {tag.tag_name: tag.tag_value for tag in modal.created[0].tags}["termrl.run"] == "cloud"
    assert modal.terminated, "the sandbox that was snapshotted was left running"
    (record,) = SnapshotStore().all()
    found = await find_snapshots([task], backend, "tool")
    assert found.hits == (task.task_name,)
    frozen = Backend("modal", {"snapshots": hand_over(found.handles)})
    sandbox = environment_of(task, frozen, tmp_path)
    await sandbox.start(force_build=False)
    assert (await sandbox.exec("cat /built /tool; echo $TASK; exit 3")).model_dump() == {
        "stdout": "built\ntool\nyes\n",
        "stderr": "",
        "return_code": 3,
    }
    assert modal.created[-1].definition.image_id == record.handle
    await sandbox.stop(delete=True)
    assert not modal.machines
    del modal.images[record.handle]
    assert (await find_snapshots([task], backend, "tool")).misses == (task.task_name,)


async def test_a_sandbox_at_modal_speaks_the_small_protocol(modal: Any, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (task.task_dir / "environment" / "data").write_text("copied")
    dockerfile = task.task_dir / "environment" / "Dockerfile"
    dockerfile.write_text(f"{dockerfile.read_text()}COPY data /data\n")
    sandbox = await modal_sandbox_factory(task.task_dir / "environment", 600)
    assert isinstance(sandbox, ModalSandbox)
    assert modal.created[0].definition.timeout_secs == 600
    await sandbox.send_heartbeat()
    assert (await sandbox.write_file("/app/in", b"bytes \xff and text")).exit_code == 0
    result = await sandbox.run_command("cat /built /data; wc -c < /app/in; echo $TASK", workdir="/app")
    assert (result.stdout.split(), result.exit_code) == (["built", "copied16", "yes"], 0)
    assert (await sandbox.read_file("/built")).stdout == "built\n"
    assert (await sandbox.read_file("/nothing")).exit_code != 0
    await sandbox.cleanup()
    assert not modal.machines
    await sandbox.cleanup()
