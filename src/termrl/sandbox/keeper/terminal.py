"""Ends the agent's terminal, from inside the sandbox.

The tmux server, the shells of its panes and what runs in their foreground are ended. What the agent
detached (nohup, disown, setsid) lives on: a task may be graded on it.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass

_GRACE_SECONDS = 0.2


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    terminal: int
    foreground: int


def processes() -> list[Process]:
    """Every process this /proc shows, dead ones left out."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        if fields[0] in "ZX":
            continue
        numbers = [int(field) for field in fields[1:6]]
        found.append(Process(int(entry), name, fields[0], *numbers))
    return found


def end_terminal() -> None:
    before = processes()
    sessions = {process.session for process in before if process.terminal}
    ours = {
        process.pid
        for process in before
        if (process.terminal and process.group == process.foreground)
        or (process.session in sessions and process.pid == process.session)
    }
    for process in before:
        if process.name.startswith("tmux"):
            _kill(process.pid)
    # Its terminals hang up; the shells pass that on to their jobs and leave.
    end = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < end:
        if not ours & {process.pid for process in processes()}:
            return
        time.sleep(0.005)
    for pid in ours & {process.pid for process in processes()}:
        _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
