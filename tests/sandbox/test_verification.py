"""Between the agent and its verifier: terminals end, and two directories become the verifier's own."""

import asyncio
import importlib
import importlib.util
import sys
import types
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from termrl.sandbox.local import LocalEnvironment


def terminus_module(name: str) -> Any:
    """One module of Terminus-2 without its package, which takes ten seconds to import a model library."""
    package = "harbor.agents.terminus_2"
    if package in sys.modules:
        return importlib.import_module(f"{package}.{name}")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    bare = types.ModuleType(package)
    bare.__path__ = list(spec.submodule_search_locations or [])
    sys.modules[package] = bare
    try:
        return importlib.import_module(f"{package}.{name}")
    finally:
        del sys.modules[package]


TmuxSession = terminus_module("tmux_session").TmuxSession


async def open_terminal(sandbox: LocalEnvironment) -> Any:
    session = TmuxSession("agent", sandbox, PurePosixPath("/logs/agent/agent.pane"), None, None)
    await session.start()
    return session


async def screen_with(session: Any, text: str) -> str:
    for _ in range(200):
        screen = await session.capture_pane()
        if text in screen:
            return screen
        await asyncio.sleep(0.02)
    raise AssertionError(f"{text!r} never appeared on the screen:\n{screen}")


async def test_a_terminal_shows_the_same_short_screen_everywhere(sandbox: LocalEnvironment) -> None:
    session = await open_terminal(sandbox)
    screen = await screen_with(session, "#")
    assert screen.strip() == "root@sandbox:/app#"
    await session.send_keys(["cd /tmp && whoami && tty && hostname", "Enter"])
    screen = await screen_with(session, "root@sandbox:/tmp#")
    assert screen.split("\n")[1:5] == ["root", "/dev/pts/0", "sandbox", "root@sandbox:/tmp#"]


async def test_a_blocking_command_and_a_long_paste_arrive(sandbox: LocalEnvironment) -> None:
    session = await open_terminal(sandbox)
    await session.send_keys(["sleep 0.2; echo done > /app/file", "Enter"], block=True, max_timeout_sec=20)
    assert (await sandbox.exec("cat /app/file")).stdout == "done\n"
    long = "cat > /app/long << 'EOF'\n" + "".join(f"line {n} of a long text\n" for n in range(2000)) + "EOF\n"
    await session.send_keys([long], min_timeout_sec=0.0)
    for _ in range(200):
        if (await sandbox.exec("wc -l < /app/long")).stdout == "2000\n":
            break
        await asyncio.sleep(0.05)
    assert (await sandbox.exec("tail -1 /app/long")).stdout == "line 1999 of a long text\n"


async def test_the_terminals_log_can_be_downloaded(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    session = await open_terminal(sandbox)
    await session.send_keys(["echo logged", "Enter"])
    await screen_with(session, "\nlogged")
    await sandbox.download_dir("/logs/agent", tmp_path / "agent")
    assert "logged" in (tmp_path / "agent" / "agent.pane").read_text()


async def test_the_agents_terminal_ends_and_its_services_live_on(sandbox, commands_in) -> None:
    session = await open_terminal(sandbox)
    for keys in (
        "nohup sleep 501 > /dev/null 2>&1 &",
        "setsid sleep 502 &",
        "sleep 503 &",
        "(trap '' HUP; while true; do sleep 504; done)",
    ):
        await session.send_keys([keys, "Enter"])
    for _ in range(200):
        if "sleep 504" in await commands_in(sandbox):
            break
        await asyncio.sleep(0.02)
    await sandbox.prepare_verification()
    assert set(await commands_in(sandbox)) == {"init", "sleep 501", "sleep 502"}


async def test_rewards_and_tests_that_the_agent_wrote_are_gone(sandbox: LocalEnvironment) -> None:
    await sandbox.exec("echo 1 > /logs/verifier/reward.txt; mkdir -p /tests; echo 'exit 0' > /tests/test.sh")
    await sandbox.prepare_verification()
    assert (await sandbox.exec("ls -A /logs/verifier /tests")).stdout == "/logs/verifier:\n\n/tests:\n"


async def test_links_in_place_of_the_verifiers_directories_are_replaced(sandbox: LocalEnvironment) -> None:
    await sandbox.exec("rm -rf /logs /tests; mkdir /app/logs; ln -s /app/logs /logs; ln -s /app /tests")
    await sandbox.prepare_verification()
    await sandbox.exec("echo 0.5 > /logs/verifier/reward.txt")
    result = await sandbox.exec("cat /logs/verifier/reward.txt; find /app; test -L /tests || echo real")
    assert result.stdout == "0.5\n/app\n/app/logs\nreal\n"


FORGERIES = {
    "writing": "mkdir -p /logs/verifier /tests",
    # Removing a directory takes away what another namespace has mounted on it.
    "removing": "rm -rf /logs/verifier /tests; mkdir -p /logs/verifier /tests",
    "moving": "mv /logs /app/logs.$i; mv /tests /app/tests.$i; mkdir -p /logs/verifier /tests",
    "linking": "rm -rf /logs /tests; mkdir -p /app/f/verifier; ln -sfn /app/f /logs; ln -sfn /app /tests",
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_process_the_agent_left_cannot_write_the_reward(
    sandbox, tmp_path: Path, forgery: str
) -> None:
    await sandbox.exec(
        f"setsid sh -c 'i=0; while true; do i=$((i+1)); {FORGERIES[forgery]};"
        " echo 1 > /logs/verifier/reward.txt; echo forged > /tests/test.sh; sleep 0.01; done'"
        " > /dev/null 2>&1 & sleep 0.1"
    )
    await sandbox.prepare_verification()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text("#!/bin/sh\necho 0 > /logs/verifier/reward.txt\nsleep 0.5\n")
    await sandbox.upload_dir(tmp_path / "tests", "/tests")
    await sandbox.exec("chmod +x /tests/test.sh; /tests/test.sh")
    await sandbox.download_dir("/logs/verifier", tmp_path / "verifier")
    assert (tmp_path / "verifier" / "reward.txt").read_text() == "0\n"
    assert "echo 0" in ((await sandbox.exec("cat /tests/test.sh")).stdout or "")


async def test_a_process_the_agent_left_cannot_look_into_the_verifiers(sandbox: LocalEnvironment) -> None:
    await sandbox.exec(
        "setsid sh -c 'while true; do for p in /proc/[0-9]*; do"
        " cat $p/root/tests/secret $p/environ 2>/dev/null; done >> /app/loot; done' > /dev/null 2>&1 &"
    )
    await sandbox.prepare_verification()
    await sandbox.exec("echo the answer > /tests/secret; sleep 1", env={"PASSWORD": "sesame"})
    loot = (await sandbox.exec("cat /app/loot | tr '\\0' ' '")).stdout or ""
    assert "HOSTNAME=sandbox" in loot
    assert "the answer" not in loot
    assert "sesame" not in loot


async def test_what_the_verifier_keeps_is_out_of_sight_of_the_next_step(sandbox: LocalEnvironment) -> None:
    await sandbox.prepare_verification()
    await sandbox.exec("echo secret > /tests/test.sh; echo shared > /app/shared")
    await sandbox.end_verification()
    assert (await sandbox.exec("ls /tests; cat /app/shared")).stdout == "shared\n"
    await sandbox.prepare_verification()
    assert (await sandbox.exec("ls /tests")).stdout == ""
