"""Work that processes of the keeper's own do for a request: one or two, inside a sandbox or beside it."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from .commands import exit_code
from .inside import Sandbox, spawn
from .loop import Loop

_CHUNK = 1 << 16


@dataclass
class Job:
    """Done when the last of its processes is."""

    request: int
    pids: set[int]
    errors: int
    failed: bool = False

    def complaint(self) -> str:
        """What they said went wrong; a broken pipe only says that the other side had a reason."""
        text = b""
        while chunk := os.read(self.errors, _CHUNK):
            text += chunk
        os.close(self.errors)
        lines = text.decode(errors="replace").strip().splitlines()
        reasons = [line for line in lines if "Broken pipe" not in line]
        return "; ".join(reasons or lines)


class Jobs:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._jobs: dict[int, Job] = {}

    def send(
        self, request: int, sandbox: Sandbox, body: Callable[[], None], *, keep_rights: bool = False
    ) -> None:
        """Have `body` done inside; what it says on its standard error is why it failed."""
        errors, complaints = os.pipe()

        def complaining() -> None:
            os.dup2(complaints, 2)
            body()

        try:
            worker = spawn(sandbox, complaining, keep_rights=keep_rights)
        except OSError:
            os.close(errors)
            raise
        finally:
            os.close(complaints)
        self.start(Job(request, {worker}, errors))

    def start(self, job: Job) -> None:
        self._jobs[job.request] = job
        for pid in job.pids:
            pidfd = os.pidfd_open(pid)
            self._loop.watch(pidfd, lambda pid=pid, pidfd=pidfd: self._on_exit(job, pid, pidfd))  # type: ignore[misc]

    def cancel(self, request: int) -> None:
        if request in self._jobs:
            for pid in self._jobs[request].pids:
                os.kill(pid, signal.SIGKILL)

    def _on_exit(self, job: Job, pid: int, pidfd: int) -> None:
        self._loop.forget(pidfd)
        job.failed |= exit_code(pid) != 0
        job.pids.remove(pid)
        if job.pids:
            return
        del self._jobs[job.request]
        complaint = job.complaint()
        if job.failed:
            self._loop.answer(job.request, error=complaint or "it was killed")
        else:
            self._loop.answer(job.request, ok=True)
