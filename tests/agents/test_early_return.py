"""Early return shows the screen that waiting would have shown, and waits where it can't be sure."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode
from harbor.models.trial.paths import EnvironmentPaths, TrialPaths

from termrl.agents.stillness import FUNCTIONS, may_return_early
from termrl.agents.stock import Command
from termrl.agents.terminal import _PANE_FORMAT, LeanTmuxSession
from termrl.sandbox.local import LocalEnvironment

DURATION = 1.5
MARGIN = 0.3

PROMPT = [
    "echo one",
    "seq 1 200",
    "ls /usr/bin | head -50",
    "cat /etc/passwd",
    "printf 'no newline'",
    "cd /tmp",
]
LATE = [
    "sleep 0.7; echo late",
    "for i in 1 2 3; do sleep 0.2; echo $i; done",
    "(sleep 0.8; echo from a subshell)",
    "read -t 0.6 x; echo waited",
    "read -e -t 0.6 x; echo waited at a line of its own",
    "python3 -c 'import time; time.sleep(0.6); print(1)'",
    "bash -c 'sleep 0.7; echo nested'",
]
BACKGROUND = [
    "(sleep 0.7; echo from behind) &",
    "nohup bash -c 'sleep 0.7; echo still here' >/dev/tty 2>&1 &",
    "setsid bash -c 'sleep 0.7; echo far away' & disown",
    "(setsid bash -c 'sleep 0.8; echo orphan' &)",
]
UNFINISHED = ["ls /e", "\t", "\x03", "echo 'open", "\n", "quote'\n", "cat <<E\n", "E\n"]
TAKES_OVER = ["python3 -q", "cat", "sleep 100", "bash"]


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[LocalEnvironment]:
    directory = tmp_path / "environment"
    directory.mkdir()
    (directory / "Dockerfile").write_text("FROM termrl/host\nWORKDIR /app\n")
    paths = TrialPaths(tmp_path / "trial")
    paths.mkdir()  # type: ignore[no-untyped-call]
    made = LocalEnvironment(
        environment_dir=directory,
        environment_name="early",
        session_id="early",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(network_mode=NetworkMode.NO_NETWORK),
    )
    await made.start(force_build=False)
    try:
        yield made
    finally:
        await made.stop(delete=True)


async def session(environment: LocalEnvironment, name: str, early_return: bool = True) -> LeanTmuxSession:
    made = LeanTmuxSession(
        session_name=name,
        environment=environment,
        logging_path=EnvironmentPaths.agent_dir / f"{name}.pane",
        local_asciinema_recording_path=None,
        remote_asciinema_recording_path=None,
        early_return=early_return,
    )
    await made.start()
    await made.get_incremental_output()
    return made


async def played(at: LeanTmuxSession, *commands: str, duration: float = DURATION, enter: str = "\n") -> float:
    """Types the commands; says how long it took."""
    began = time.monotonic()
    await at.play([Command(keystrokes=f"{command}{enter}", duration_sec=duration) for command in commands])
    return time.monotonic() - began


async def screens(at: LeanTmuxSession) -> tuple[str, str]:
    return await at.capture_pane(capture_entire=True), await at.capture_pane()


async def check_that_waiting_shows_no_more(
    at: LeanTmuxSession, *commands: str, duration: float = DURATION, enter: str = "\n"
) -> bool:
    """Whether it returned early; if so, nothing on the screen may change in the time it did not wait."""
    began = time.monotonic()
    await played(at, *commands, duration=duration, enter=enter)
    shown = await screens(at)
    await at.get_incremental_output()
    left = began + duration * len(commands) + MARGIN - time.monotonic()
    if left <= MARGIN:
        return False
    await asyncio.sleep(left)
    assert await screens(at) == shown, commands
    return True


@pytest.mark.parametrize(
    "commands", [PROMPT, LATE, BACKGROUND, UNFINISHED], ids=["prompt", "late", "behind", "typing"]
)
async def test_the_screen_is_the_one_that_waiting_would_have_shown(
    environment: LocalEnvironment, commands: list[str]
) -> None:
    at = await session(environment, "early")
    for command in commands:
        await check_that_waiting_shows_no_more(at, command, enter="" if commands is UNFINISHED else "\n")


async def test_random_sequences_of_commands_show_what_waiting_shows(environment: LocalEnvironment) -> None:
    rng = random.Random(0)
    at = await session(environment, "early")
    for _ in range(4):
        await check_that_waiting_shows_no_more(at, *rng.choices([*PROMPT, *LATE, *BACKGROUND], k=2))


async def test_what_takes_the_terminal_over_is_waited_for(environment: LocalEnvironment) -> None:
    for number, command in enumerate(TAKES_OVER):
        at = await session(environment, f"over{number}")
        assert await played(at, command) >= DURATION, command


async def test_what_prints_late_is_on_the_screen(environment: LocalEnvironment) -> None:
    at = await session(environment, "late")
    await played(at, "sleep 0.5; echo la''te", duration=20.0)
    assert "late" in (await screens(at))[1]


async def test_a_command_that_is_done_is_not_waited_for(environment: LocalEnvironment) -> None:
    at = await session(environment, "quick")
    assert await played(at, "echo done", "cd /tmp", duration=20.0) < 20.0


async def test_without_early_return_the_whole_duration_is_waited(environment: LocalEnvironment) -> None:
    at = await session(environment, "patient", early_return=False)
    assert await played(at, "echo done", duration=1.0) >= 1.0


async def test_a_turn_is_one_trip_into_the_sandbox(
    environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await session(environment, "trips")
    trips = []
    usual = environment.exec

    async def counted(command: str, *args: Any, **kwargs: Any) -> Any:
        trips.append(command)
        return await usual(command, *args, **kwargs)

    monkeypatch.setattr(environment, "exec", counted)
    await played(at, "echo one", "echo two", duration=0.3)
    await at.get_incremental_output()
    assert await at.is_session_alive()
    assert len(trips) == 1


@pytest.mark.parametrize("keys", ["read -t 5", "TMOUT=3", "exec zsh", "select x in a; do :; done"])
def test_what_could_wait_without_being_seen_to_is_left_its_time(keys: str) -> None:
    assert not may_return_early(keys)
    assert may_return_early("ls; make thread; unread")


async def test_keys_that_have_not_reached_the_shell_are_waited_for(environment: LocalEnvironment) -> None:
    """A busy machine passes keys on late: that tmux has run says nothing, only that the shell has."""
    at = await session(environment, "late-keys")
    pane = await environment.exec(f"tmux display-message -p -t late-keys '{_PANE_FORMAT}'")
    names = "set -- {}; shell_pid=$1 tmux_pid=$2 pane_tty=$3".format((pane.stdout or "").strip())
    script = (
        f'{names}\n{FUNCTIONS}\nran before; tmux display-message -p hi >/dev/null; until_done 700 "$before"'
    )
    began = time.monotonic()
    result = await environment.exec(script)
    assert result.return_code == 0
    assert time.monotonic() - began > 0.6
    assert await at.is_session_alive()
