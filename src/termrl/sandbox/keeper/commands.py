"""A command running in a sandbox: its output as it comes, its time limit, and how all of it is ended.

A command is done when its first process is. What it left in the background keeps a reader on its output,
so that it doesn't die of a closed pipe.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field

from .inside import Sandbox, program, spawn
from .loop import Loop
from .messages import CommandPlan
from .sandboxes import Sandboxes
from .terminal import processes

OUTPUT_LIMIT = 64 << 20
_CHUNK = 1 << 16


@dataclass
class Command:
    request: int
    sandbox: Sandbox
    pid: int
    pidfd: int
    streams: dict[int, str]
    deadline: float | None
    output: dict[str, bytearray] = field(
        default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()}
    )
    timed_out: bool = False

    def read(self, stream: int) -> bool:
        """Take what there is; False at the end of the stream."""
        try:
            chunk = os.read(stream, _CHUNK)
        except BlockingIOError:
            return True
        kept = self.output[self.streams[stream]]
        kept += chunk[: OUTPUT_LIMIT - len(kept)]
        return bool(chunk)

    def drain(self) -> None:
        """Take everything written so far."""
        for stream, name in self.streams.items():
            while True:
                before = len(self.output[name])
                if not self.read(stream) or len(self.output[name]) in (before, OUTPUT_LIMIT):
                    break

    def end(self) -> None:
        """Kill the command and everything it started, also what made itself a session of its own."""
        _signal(self.pid, signal.SIGSTOP)
        for _ in range(100):
            started = _descendants(self.pid)
            if not started:
                break
            for pid in started:
                _signal(pid, signal.SIGKILL)
        _signal(self.pid, signal.SIGKILL)


def start(
    request: int, sandbox: Sandbox, plan: CommandPlan, deadline: float | None, *, guarded: bool
) -> Command:
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    try:
        pid = spawn(sandbox, program(plan, out_write, err_write, guarded))
    except OSError:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        os.close(out_write)
        os.close(err_write)
    for stream in (out_read, err_read):
        os.set_blocking(stream, False)
    streams = {out_read: "stdout", err_read: "stderr"}
    return Command(request, sandbox, pid, os.pidfd_open(pid), streams, deadline)


def exit_code(pid: int) -> int:
    """Reap `pid` and say how it ended, as a shell would."""
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process.pid)
    found: list[int] = []
    ahead = [root]
    while ahead:
        for child in children.get(ahead.pop(), []):
            found.append(child)
            ahead.append(child)
    return found


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Commands:
    """Those that are running, for the requests that wait for them."""

    def __init__(self, loop: Loop, sandboxes: Sandboxes) -> None:
        self._loop = loop
        self._sandboxes = sandboxes
        self._running: dict[int, Command] = {}
        loop.keep_time_for(self)

    def run(self, request: int, name: str, plan: CommandPlan, timeout: float | None) -> None:
        sandbox = self._sandboxes.named(name)
        deadline = None if timeout is None else time.monotonic() + timeout
        command = start(request, sandbox, plan, deadline, guarded=sandbox.view is not None)
        self._running[request] = command
        for stream in command.streams:
            self._loop.watch(stream, lambda stream=stream: self._on_output(command, stream))  # type: ignore[misc]
        self._loop.watch(command.pidfd, lambda: self._on_exit(command))

    def cancel(self, request: int) -> None:
        if request in self._running:
            self._running[request].end()

    def _on_output(self, command: Command, stream: int) -> None:
        if not command.read(stream):
            del command.streams[stream]
            self._loop.forget(stream)

    def _on_exit(self, command: Command) -> None:
        self._loop.forget(command.pidfd)
        command.drain()
        code = exit_code(command.pid)
        del self._running[command.request]
        self._loop.answer(
            command.request,
            code=code,
            timed_out=command.timed_out,
            stdout=bytes(command.output["stdout"]),
            stderr=bytes(command.output["stderr"]),
        )
        for kept in command.output.values():
            kept.clear()
        for stream in command.streams:
            self._loop.react_otherwise(stream, lambda stream=stream: self._discard(stream))  # type: ignore[misc]

    def _discard(self, stream: int) -> None:
        # What made the stream readable may have been drained since, in the same round of events.
        with contextlib.suppress(BlockingIOError):
            if not os.read(stream, _CHUNK):
                self._loop.forget(stream)

    def deadlines(self) -> list[float]:
        return [each.deadline for each in self._running.values() if each.deadline is not None]

    def end_overdue(self, now: float) -> None:
        for command in self._running.values():
            if command.deadline is not None and command.deadline <= now:
                command.deadline = None
                command.timed_out = True
                command.end()
