"""The sandboxes that a keeper has: how each is booted, stopped, and put away when it ended by itself."""

import contextlib
import os
import signal
import socket
import time

from . import kernel
from .boot import boot, namespaces, privileged, write_id_maps
from .cgroups import ControlGroups, Group
from .inside import NoSuchSandbox, Sandbox
from .loop import Loop
from .messages import BootPlan

_ENDING_SECONDS = 2.0


class Sandboxes:
    def __init__(self, loop: Loop, label: str) -> None:
        self._loop = loop
        self._label = label
        self._as_root = privileged()
        self._running: dict[str, Sandbox] = {}
        self._booting: dict[str, Sandbox] = {}
        self._stopping: dict[str, int] = {}
        self._cgroups: ControlGroups | None = None
        self._ending_groups: list[Group] = []
        self._number = 0
        loop.keep_time_for(self)

    def named(self, name: str) -> Sandbox:
        if name not in self._running:
            raise NoSuchSandbox(0, f"sandbox {name} is not running")
        return self._running[name]

    def boot(self, request: int, name: str, plan: BootPlan) -> None:
        here, there = socket.socketpair()
        flags = namespaces(plan["network"]) | (0 if self._as_root else kernel.NEW_USER)
        self._number += 1
        group = self._open_group(f"{os.getpid()}-{self._number}", plan)
        pid = kernel.clone(flags)
        if pid == 0:
            here.close()  # else it would keep its own channel open when the keeper is gone, and wait for ever
            boot(plan, there, self._as_root, group)
        there.close()
        deadline = None if plan["lifetime"] is None else time.monotonic() + plan["lifetime"]
        sandbox = Sandbox(name, pid, os.pidfd_open(pid), plan["network"], self._as_root, group, deadline)
        sandbox.many_ids = plan["many_ids"]
        self._booting[name] = sandbox
        channel = here.detach()
        said = bytearray()
        self._loop.watch(channel, lambda: self._on_boot(request, sandbox, channel, said))

    def _on_boot(self, request: int, sandbox: Sandbox, channel: int, said: bytearray) -> None:
        try:
            chunk = os.read(channel, 4096)
        except ConnectionResetError:  # killed before it read our answer
            chunk = b""
        if chunk == b"u":
            try:
                write_id_maps(sandbox.pid, self._as_root, sandbox.many_ids)
                os.write(channel, b"g")
            except OSError as error:
                os.kill(sandbox.pid, signal.SIGKILL)
                self._boot_failed(request, sandbox, channel, f"mapping ids: {error.strerror}")
        elif chunk:
            said += chunk
        elif said == b"r":
            # The channel closed because the first process became `init`: it is all there.
            self._loop.forget(channel)
            self._running[sandbox.name] = self._booting.pop(sandbox.name)
            self._loop.watch(sandbox.pidfd, lambda: self._on_end(sandbox))
            self._loop.answer(request, ok=True)
        else:
            why = said.decode(errors="replace").partition("e")[2]
            self._boot_failed(request, sandbox, channel, why or "its first process died")

    def _boot_failed(self, request: int, sandbox: Sandbox, channel: int, why: str) -> None:
        self._loop.forget(channel)
        del self._booting[sandbox.name]
        os.waitpid(sandbox.pid, 0)
        sandbox.close()
        self._close_group(sandbox.group)
        self._loop.answer(request, error=f"the sandbox could not be made: {why}")
        self._say_stopped(sandbox.name)

    def stop(self, request: int, name: str) -> None:
        sandbox = self._running.get(name) or self._booting.get(name)
        if sandbox is None:
            self._loop.answer(request, ok=True)
            return
        self._stopping[name] = request
        os.kill(sandbox.pid, signal.SIGKILL)

    def _on_end(self, sandbox: Sandbox) -> None:
        os.waitpid(sandbox.pid, 0)
        self._loop.release(sandbox.pidfd)
        del self._running[sandbox.name]
        sandbox.close()
        self._close_group(sandbox.group)
        self._say_stopped(sandbox.name)

    def _say_stopped(self, name: str) -> None:
        if name in self._stopping:
            self._loop.answer(self._stopping.pop(name), ok=True)

    def deadlines(self) -> list[float]:
        return [each.deadline for each in self._running.values() if each.deadline is not None]

    def end_overdue(self, now: float) -> None:
        for sandbox in self._running.values():
            if sandbox.deadline is not None and sandbox.deadline <= now:
                sandbox.deadline = None
                with contextlib.suppress(ProcessLookupError):
                    os.kill(sandbox.pid, signal.SIGKILL)

    def _open_group(self, name: str, plan: BootPlan) -> Group | None:
        if plan["limits"] is None:
            return None
        if self._cgroups is None:
            self._cgroups = ControlGroups(self._label)
        return self._cgroups.open(name, plan["limits"])

    def _close_group(self, group: Group | None) -> None:
        """Those that are not empty yet are looked at again when the next one closes."""
        if group is not None:
            self._ending_groups.append(group)
        if self._ending_groups:
            self._ending_groups = [group for group in self._ending_groups if not group.close()]

    def leave(self) -> None:
        """Every sandbox's first process dies with the keeper, and takes its namespace along; groups stay."""
        if self._cgroups is None:
            return
        for sandbox in (*self._running.values(), *self._booting.values()):
            with contextlib.suppress(OSError):
                os.kill(sandbox.pid, signal.SIGKILL)
            if sandbox.group is not None:
                self._ending_groups.append(sandbox.group)
        end = time.monotonic() + _ENDING_SECONDS
        while self._ending_groups and time.monotonic() < end:
            # A namespace ends when the last of its processes is waited for, and commands are our children.
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            self._ending_groups = [group for group in self._ending_groups if not group.close()]
            time.sleep(0.005)
        self._cgroups.close()
