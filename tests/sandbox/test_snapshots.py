"""Snapshots of the local sandbox: content keys, records, failures, expiry, and starting from one."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.trial.paths import TrialPaths

from termrl.cli import main
from termrl.sandbox import snapshots
from termrl.sandbox.backends import Backend
from termrl.sandbox.freezing import AgentTools, find_snapshots, freeze, synchronize
from termrl.sandbox.layers import remove_tree
from termrl.sandbox.snapshots import SnapshotStore
from termrl.tasks.task import HarborTask, load_harbor_task


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_task(folder: Path, name: str, dockerfile: str, data: str = "data") -> HarborTask:
    task = folder / "tasks" / name
    for path, text in {
        "task.toml": "",
        "instruction.md": "do it\n",
        "tests/test.sh": "true\n",
        "environment/Dockerfile": dockerfile,
        "environment/data": data,
    }.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    return load_harbor_task(task)


DOCKERFILE = "FROM termrl/host\nCOPY data /data\nRUN echo built >> /built\nWORKDIR /app\n"


def start_from(task: HarborTask, handles: dict[str, str], folder: Path) -> BaseEnvironment:
    paths = TrialPaths(folder / "trial")
    paths.mkdir()
    return EnvironmentFactory.create_environment_from_config(
        config=Backend("local", {"snapshots": snapshots.hand_over(handles)}).environment_config(task.config),
        environment_dir=task.task_dir / "environment",
        environment_name="t",
        session_id="t",
        trial_paths=paths,
        task_env_config=task.config.environment.model_copy(),
    )


async def test_a_snapshot_is_made_once_and_started_from_with_the_agents_tools(tmp_path: Path) -> None:
    task = write_task(tmp_path, "one", DOCKERFILE)
    prepared: list[str] = []

    async def prepare(environment: BaseEnvironment) -> None:
        prepared.append(environment.environment_name)
        await environment.exec("mkdir -p /opt/tool && echo here > /opt/tool/ready && rm /data")

    tools = AgentTools("tool 1", prepare)
    (first,) = await freeze([task], Backend("local"), tools=tools)
    (second,) = await freeze([task], Backend("local"), tools=tools)
    assert (first.state, second.state, first.key) == ("built", "there", second.key)
    assert prepared == ["one"]
    found = await find_snapshots([task], Backend("local"), "tool 1")
    assert found.hits == (task.task_name,)
    assert (await find_snapshots([task], Backend("local"), "tool 2")).misses == (task.task_name,)
    for _ in range(2):
        sandbox = start_from(task, found.handles, tmp_path)
        await sandbox.start(force_build=False)
        result = await sandbox.exec("cat /opt/tool/ready /built; pwd; ls /data; echo more >> /built")
        assert result.stdout == "here\nbuilt\n/app\n"
        await sandbox.stop(delete=True)


async def test_the_key_is_content_and_never_a_name(tmp_path: Path) -> None:
    first, same = write_task(tmp_path, "a", DOCKERFILE), write_task(tmp_path, "b", DOCKERFILE)
    built = await freeze([first, same], Backend("local"))
    assert sorted(each.state for each in built) == ["built", "shared"]
    (record,) = SnapshotStore().all()
    assert set(record.tasks) == {first.task_name, same.task_name}
    changed = write_task(tmp_path, "a", DOCKERFILE, data="other")
    assert (await find_snapshots([changed], Backend("local"), "")).misses == (first.task_name,)
    (first.task_dir / "environment/data").write_text("data")
    (first.task_dir / "environment/unused").write_text("x")
    assert (await find_snapshots([first], Backend("local"), "")).hits == ()
    assert (await find_snapshots([same], Backend("local"), "")).hits == (same.task_name,)


async def test_a_failed_build_is_reported_and_the_others_stand(tmp_path: Path) -> None:
    good = write_task(tmp_path, "good", DOCKERFILE)
    bad = write_task(tmp_path, "bad", "FROM termrl/host\nRUN echo the end of the log; exit 7\n")
    built = {each.task_name: each for each in await freeze([bad, good], Backend("local"))}
    assert built[good.task_name].state == "built"
    assert built[bad.task_name].state == "failed"
    assert "the end of the log" in built[bad.task_name].detail
    mended = write_task(tmp_path, "bad", "FROM termrl/host\nRUN true\n")
    again = {each.task_name: each.state for each in await freeze([mended, good], Backend("local"))}
    assert again == {bad.task_name: "built", good.task_name: "there"}


async def test_an_expired_snapshot_is_built_again_and_recorded_once(tmp_path: Path) -> None:
    task = write_task(tmp_path, "one", DOCKERFILE)
    await freeze([task], Backend("local"), ttl_hours=1e-7)
    await asyncio.sleep(0.01)
    assert (await find_snapshots([task], Backend("local"), "")).hits == ()
    (again,) = await freeze([task], Backend("local"), ttl_hours=5)
    assert again.state == "built"
    (record,) = SnapshotStore().all()
    assert record.expires is not None
    assert record.expires > time.time() + 4 * 3600


async def test_what_is_gone_is_a_miss_and_sync_brings_records_into_step(tmp_path: Path) -> None:
    one, two = write_task(tmp_path, "one", DOCKERFILE), write_task(tmp_path, "two", DOCKERFILE, "2")
    await freeze([one, two], Backend("local"))
    layers = tmp_path / "cache/termrl/layers"
    first, second = SnapshotStore().all()
    remove_tree(layers / first.handle)
    assert len((await find_snapshots([one, two], Backend("local"), "")).hits) == 1
    (layers / "snapshot-stray").mkdir()
    assert await synchronize(Backend("local")) == ([first.key], ["snapshot-stray"])
    assert SnapshotStore().all() == [second]


def test_two_processes_at_once_end_with_one_good_record(tmp_path: Path) -> None:
    task = write_task(tmp_path, "one", DOCKERFILE + "RUN sleep 0.5\n")
    script = (
        "import asyncio, pathlib, sys\nfrom termrl.sandbox.backends import Backend\n"
        "from termrl.sandbox.freezing import freeze\nfrom termrl.tasks.task import load_harbor_task\n"
        "print(asyncio.run(freeze([load_harbor_task(pathlib.Path(sys.argv[1]))], Backend('local')))[0].state)"
    )
    command = [sys.executable, "-c", script, str(task.task_dir)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert {each.communicate()[0].strip() for each in running} <= {"built", "there"}
    (record,) = SnapshotStore().all()
    found = asyncio.run(find_snapshots([task], Backend("local"), ""))
    assert list(found.handles.values()) == [record.handle]


def test_snapshots_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "three"):
        write_task(tmp_path, name, DOCKERFILE, name)
    dataset = str(tmp_path / "tasks")
    assert main(["snapshot", "create", dataset, "task_indices=0,2", "workers=2", "ttl_hours=1"]) == 0
    assert "2 built, 0 shared, 0 there, 0 failed." in capsys.readouterr().out
    assert main(["snapshot", "create", dataset, "--json"]) == 0
    assert sorted(row["state"] for row in json.loads(capsys.readouterr().out)) == ["built", "there", "there"]
    assert main(["snapshot", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == 3
    assert main(["snapshot", "inspect", listed[0]["key"][:10]]) == 0
    assert json.loads(capsys.readouterr().out)["there"] is True
    assert main(["snapshot", "renew", "all"]) == 0
    assert {record.expires for record in SnapshotStore().all()} == {None}
    assert main(["snapshot", "destroy", "all"]) == 0
    assert SnapshotStore().all() == []
    assert not list((tmp_path / "cache/termrl/layers").glob("snapshot-*"))
    assert main(["snapshot", "sync"]) == 0
    assert main(["snapshot", "list"]) == 0
    capsys.readouterr()
    for words, named in {
        ("create",): "takes a DATASET",
        ("create", dataset, "task_indices=9"): "has 3 tasks",
        ("create", dataset, "environment_type=e2b"): "e2b",
        ("create", dataset, "ttl_hours=-1"): "above 0",
        ("create", dataset, "agent=nobody"): "there is no agent 'nobody'",
        ("destroy", "missing"): "There is no snapshot 'missing'",
    }.items():
        assert main(["snapshot", *words]) == 2
        assert named in capsys.readouterr().err
