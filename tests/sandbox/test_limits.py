"""cpus, memory, processes and lifetime: what a task says is what its sandbox gets."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from termrl.sandbox.client import KeeperClient
from termrl.sandbox.errors import SandboxLost
from termrl.sandbox.keeper.cgroups import ControlGroups
from termrl.sandbox.lifetime import lifetime_seconds
from termrl.sandbox.local import LocalEnvironment

FILL = "python3 -c 'x = bytearray({} << 20); print(len(x))'"


async def controllers() -> dict[str, int]:
    return (await (await KeeperClient.of_this_loop()).findings())["cgroups"]


async def test_more_memory_than_the_task_has_is_not_to_be_had(make_sandbox) -> None:
    sandbox = make_sandbox(config={"memory_mb": 64, "storage_mb": 16})
    await sandbox.start(force_build=False)
    assert (await sandbox.exec(FILL.format(20))).return_code == 0
    assert (await sandbox.exec(FILL.format(300))).return_code != 0
    assert (await sandbox.exec("echo still here")).stdout == "still here\n"


async def test_many_processes_together_get_no_more_memory_either(make_sandbox) -> None:
    if "memory" not in await controllers():
        assert os.geteuid() != 0, "root can make control groups here"
        return  # said by `doctor`: without a group the limit is each process's own
    sandbox = make_sandbox(config={"memory_mb": 96, "storage_mb": 16})
    await sandbox.start(force_build=False)
    hold = "python3 -c 'x = bytearray(40 << 20); print(1, flush=True); import time; time.sleep(2)'"
    result = await sandbox.exec(f"for i in 1 2 3 4 5 6; do {hold} & done; wait")
    assert 0 < len((result.stdout or "").split()) < 6


async def test_a_sandbox_gets_the_processors_it_asked_for(make_sandbox) -> None:
    sandbox = make_sandbox(config={"cpus": 1})
    await sandbox.start(force_build=False)
    spin = "import time; end = time.time() + 2\nwhile time.time() < end: pass"
    command = f'for i in 1 2 3 4; do python3 -c "{spin}" & done; wait; times | tail -1'
    minutes, seconds = ((await sandbox.exec(command)).stdout or "").split()[0].rstrip("s").split("m")
    used = float(minutes) * 60 + float(seconds)
    assert used <= 2.0 * 1.4, f"four loops of two seconds used {used} s of one processor"


async def test_a_sandbox_ends_when_its_lifetime_does(make_sandbox) -> None:
    sandbox = make_sandbox(lifetime=1)
    await sandbox.start(force_build=False)
    began = time.monotonic()

    async def use() -> None:
        while time.monotonic() < began + 20:
            await sandbox.exec("true")
            await asyncio.sleep(0.1)

    with pytest.raises(SandboxLost):
        await use()
    assert time.monotonic() - began < 10


def test_a_lifetime_covers_every_phase_of_every_step() -> None:
    from harbor.models.task.config import TaskConfig

    toml = {
        "environment": {"build_timeout_sec": 10},
        "agent": {"timeout_sec": 100},
        "verifier": {"timeout_sec": 20},
    }
    single = lifetime_seconds(TaskConfig.model_validate(toml))
    assert single >= 10 + 100 + 20 + 300
    steps = [{"name": "a"}, {"name": "b", "agent": {"timeout_sec": 1000}}]
    assert lifetime_seconds(TaskConfig.model_validate({**toml, "steps": steps})) >= single + 1000
    assert lifetime_seconds(TaskConfig.model_validate(toml), agent_timeout=5000) >= 5000
    assert lifetime_seconds(TaskConfig()) > 24 * 3600


async def test_groups_are_gone_with_their_sandboxes(make_sandbox, sandbox: LocalEnvironment) -> None:
    from termrl.sandbox.keeper.cgroups import labelled

    limited = make_sandbox(config={"memory_mb": 64, "cpus": 1})
    await limited.start(force_build=False)
    await limited.exec("sleep 100 &")
    mine = f".{os.getpid()}-"
    groups = [path for name, paths in labelled().items() if mine in name for path in paths]
    if "memory" in await controllers():
        assert any(any(Path(path).glob("*/cgroup.procs")) for path in groups)
    (await KeeperClient.of_this_loop()).close()
    assert not [name for name in labelled() if mine in name]


@pytest.fixture
def version_two(tmp_path: Path) -> tuple[str, str, Path]:
    """The files of a version 2 hierarchy, with this process two groups down."""
    root = tmp_path / "cgroup"
    (root / "user/app").mkdir(parents=True)
    for folder, here, below in (
        ("", "cpu memory pids", "memory pids"),
        ("user", "memory pids", "memory pids"),
    ):
        (root / folder / "cgroup.controllers").write_text(here)
        (root / folder / "cgroup.subtree_control").write_text(below)
    (root / "user/app/cgroup.controllers").write_text("memory pids")
    (root / "user/app/cgroup.subtree_control").write_text("")
    (tmp_path / "mounts").write_text(f"cgroup2 {root} cgroup2 rw 0 0\n")
    (tmp_path / "own").write_text("0::/user/app\n")
    return str(tmp_path / "mounts"), str(tmp_path / "own"), root


def test_version_two_is_used_where_it_has_the_controllers(version_two: tuple[str, str, Path]) -> None:
    mounts, own, root = version_two
    groups = ControlGroups("run.1-2-3", mounts, own)
    assert groups.controllers["memory"] == 2
    group = None
    home = next(root.rglob("termrl.run.1-2-3"))
    # A real kernel makes the file with the directory.
    (home / "s1").mkdir()
    (home / "s1" / "cgroup.procs").write_text("")
    group = groups.open("s1", {"cpus": None, "memory_mb": 100, "pids": 7})
    assert group is not None
    assert (home / "s1/memory.max").read_text() == str(100 << 20)
    assert (home / "s1/pids.max").read_text() == "7"
