"""Nothing is left behind, however a run ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from termrl.sandbox.client import KeeperClient
from termrl.sandbox.errors import SandboxLost

RUN = Path(__file__).with_name("run_to_kill.py")


def sleepers() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == b"sleep\x0086399.5\0":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until_gone(keeper: int) -> None:
    end = time.monotonic() + 10
    while (is_running(keeper) or sleepers()) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_running(keeper)
    assert sleepers() == []


@pytest.mark.parametrize("victim", ["run", "keeper"])
def test_a_killed_process_takes_its_sandboxes_along(tmp_path: Path, layers_dir: Path, victim: str) -> None:
    run = subprocess.Popen(
        [sys.executable, str(RUN), str(tmp_path), str(layers_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert run.stdout is not None
    keeper = int(run.stdout.readline())
    assert len(sleepers()) == 4
    os.kill(run.pid if victim == "run" else keeper, signal.SIGKILL)
    try:
        wait_until_gone(keeper)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(layers_dir) not in mounts


async def test_a_lost_keeper_is_said_and_the_next_sandbox_gets_a_new_one(make_sandbox) -> None:
    first = make_sandbox()
    await first.start(force_build=False)
    waiting = asyncio.create_task(first.exec("sleep 100"))
    await asyncio.sleep(0.1)
    os.kill((await KeeperClient.of_this_loop()).pid, signal.SIGKILL)
    with pytest.raises(SandboxLost, match="keeper ended"):
        await waiting
    with pytest.raises(SandboxLost):
        await first.exec("true")
    await first.stop(delete=True)
    second = make_sandbox()
    await second.start(force_build=False)
    assert (await second.exec("echo well")).stdout == "well\n"


async def test_sandboxes_that_start_together_share_one_keeper(make_sandbox) -> None:
    sandboxes = [make_sandbox() for _ in range(8)]
    await asyncio.gather(*(sandbox.start(force_build=False) for sandbox in sandboxes))
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    keepers = [pid for pid in own if b"keeper.server" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert keepers == [str((await KeeperClient.of_this_loop()).pid)]


async def test_a_sandbox_whose_first_process_dies_is_lost_and_the_others_go_on(make_sandbox) -> None:
    first, second = make_sandbox(), make_sandbox()
    await first.start(force_build=False)
    await second.start(force_build=False)
    keeper = (await KeeperClient.of_this_loop()).pid
    children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    await asyncio.sleep(0.2)
    with pytest.raises(SandboxLost):
        await first.exec("true")
    assert (await second.exec("echo well")).stdout == "well\n"


async def test_a_start_that_is_cancelled_leaves_no_sandbox(make_sandbox) -> None:
    keeper = await KeeperClient.of_this_loop()
    await keeper.findings()
    for delay in (0.0, 0.001, 0.003, 0.01):
        sandbox = make_sandbox()
        start = asyncio.create_task(sandbox.start(force_build=False))
        await asyncio.sleep(delay)
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        await sandbox.stop(delete=True)
    end = time.monotonic() + 5
    while Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split():
        assert time.monotonic() < end, "a sandbox outlived its cancelled start"
        await asyncio.sleep(0.02)


async def test_a_keeper_at_rest_holds_no_more_descriptors_than_before(make_sandbox, tmp_path: Path) -> None:
    keeper = await KeeperClient.of_this_loop()
    (tmp_path / "file").write_text("x")

    async def use() -> None:
        sandbox = make_sandbox()
        await sandbox.start(force_build=False)
        await sandbox.upload_file(tmp_path / "file", "/app/file")
        await sandbox.exec("sleep 50 &")
        await sandbox.prepare_verification()
        await sandbox.download_dir("/app", tmp_path / "back")
        await sandbox.stop(delete=True)

    await use()
    before = len(os.listdir(f"/proc/{keeper.pid}/fd"))
    for _ in range(3):
        await use()
    assert len(os.listdir(f"/proc/{keeper.pid}/fd")) <= before
