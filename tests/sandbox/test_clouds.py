"""Daytona and Modal through their own clients, against loopback servers whose sandboxes are real ones."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.trial.paths import TrialPaths

import daytona_server
import modal_server
import registry_server
from termrl.sandbox.backends import Backend
from termrl.sandbox.choice import start_from_snapshots
from termrl.sandbox.freezing import AgentTools, find_snapshots, freeze
from termrl.sandbox.labels import labelled_run
from termrl.sandbox.modal import ModalSandbox, modal_sandbox_factory
from termrl.sandbox.readiness import check_backend
from termrl.sandbox.snapshots import SnapshotStore, hand_over
from termrl.sandbox.snapshotters import snapshotter_for
from termrl.tasks.task import HarborTask, load_harbor_task


@pytest.fixture
async def daytona(tmp_path: Path, layers_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Harbor keeps one client a process, and each test has a loop of its own.
    monkeypatch.setattr("harbor.environments.daytona.environment.DaytonaClientManager._instance", None)
    async with daytona_server.serve(tmp_path / "daytona", layers_dir) as service:
        monkeypatch.setenv("DAYTONA_API_KEY", daytona_server.KEY)
        monkeypatch.setenv("DAYTONA_API_URL", f"{service.url}/api")
        monkeypatch.setenv("DAYTONA_TARGET", "us")
        yield service


@pytest.fixture
async def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "nobody-logged-in"))
    async with registry_server.serve("bearer") as server:
        yield server


def base_image(registry: Any, service: Any, content: str = "one") -> str:
    """The reference of an image of that content, which machines of the service know by its digest alone."""
    digest = registry.put("base", "1", content)
    service.base_images[f"{registry.host}/base@{digest}"] = "termrl/host"
    return f"{registry.host}/base:1"


def write_task(folder: Path, image: str = "termrl/host") -> HarborTask:
    files = {
        "task.toml": '[environment]\nenv = { TASK = "yes" }\n',
        "instruction.md": "x\n",
        "tests/test.sh": "true\n",
        "environment/Dockerfile": f"FROM {image}\nRUN echo built > /built\n",
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
    daytona: Any, registry: Any, tmp_path: Path
) -> None:
    assert check_backend("daytona").ok
    task = write_task(tmp_path / "task", base_image(registry, daytona))

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

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    async with modal_server.serve(tmp_path / "modal", layers_dir) as service:
        monkeypatch.setenv("MODAL_SERVER_URL", f"http://127.0.0.1:{service.port}")
        monkeypatch.setenv("MODAL_TOKEN_ID", modal_server.TOKEN[0])
        monkeypatch.setenv("MODAL_TOKEN_SECRET", modal_server.TOKEN[1])
        monkeypatch.setenv("MODAL_SANDBOX_V2", "1")  # which Harbor sets, and leaves set
        yield service
        await (await Client.from_env.aio())._close.aio()


async def test_modal_is_built_snapshotted_and_started_from_through_its_own_client(
    modal: Any, registry: Any, tmp_path: Path
) -> None:
    assert check_backend("modal").ok, check_backend("modal").detail
    task = write_task(tmp_path / "task", base_image(registry, modal))
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


async def test_a_moved_tag_is_a_miss_at_daytona_and_what_is_built_then_is_the_new_content(
    daytona: Any, registry: Any, tmp_path: Path
) -> None:
    await see_a_moved_tag(Backend("daytona"), daytona, registry, tmp_path)


async def test_a_moved_tag_is_a_miss_at_modal_and_what_is_built_then_is_the_new_content(
    modal: Any, registry: Any, tmp_path: Path
) -> None:
    await see_a_moved_tag(Backend("modal"), modal, registry, tmp_path)


async def see_a_moved_tag(backend: Backend, service: Any, registry: Any, tmp_path: Path) -> None:
    image = base_image(registry, service)
    named = write_task(tmp_path / "named", image)
    prebuilt = write_task(tmp_path / "prebuilt")
    (prebuilt.task_dir / "task.toml").write_text(f'[environment]\ndocker_image = "{image}"\n')
    tasks = [named, load_harbor_task(prebuilt.task_dir)]
    built = await freeze(tasks, backend)
    assert [(each.state, each.detail) for each in built] == [("built", ""), ("built", "")]
    assert len((await find_snapshots(tasks, backend, "")).hits) == 2
    base_image(registry, service, "two")
    assert len((await find_snapshots(tasks, backend, "")).misses) == 2
    # Only the new content's digest leads anywhere now, so that a build by the tag's name would fail.
    service.base_images = dict(list(service.base_images.items())[-1:])
    again = await freeze(tasks, backend)
    assert [(each.state, each.detail) for each in again] == [("built", ""), ("built", "")]
    assert {each.key for each in again}.isdisjoint(each.key for each in built)
    assert len((await find_snapshots(tasks, backend, "")).hits) == 2
    registry.manifests.clear()
    unknown = await find_snapshots(tasks, backend, "")
    assert (unknown.hits, len(unknown.misses)) == ((), 2)
    assert "has no image" in unknown.unknown[0]
    said: list[str] = []
    assert await start_from_snapshots(backend, tasks, "", said.append) == backend
    assert any("no snapshot is used where this is so" in line for line in said), said


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
