"""The keeper's loop: reads requests from its one client, watches what runs, answers when it is done.

It ends when the client's process does, however that ended, and the sandboxes end with it.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from . import kernel, transfer
from .boot import boot, namespaces, privileged, root_id, write_id_maps
from .cgroups import ControlGroups, Group
from .commands import Command, Job, exit_code, start
from .inside import NoSuchSandbox, Sandbox, spawn, spawn_on_host
from .messages import BootPlan, decode, encode
from .probe import probe
from .signs import find_signs, host_links
from .terminal import end_terminal
from .view import open_view

_RECEIVE = 1 << 16
_ENDING_SECONDS = 2.0


class Keeper:
    def __init__(self, client: socket.socket, parent: int, label: str) -> None:
        self._client = client
        self._label = label
        self._cgroups: ControlGroups | None = None
        self._ending_groups: list[Group] = []
        self._inbox = bytearray()
        self._poll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._as_root = privileged()
        self._sandboxes: dict[str, Sandbox] = {}
        self._commands: dict[int, Command] = {}
        self._signs: dict[str, list[str]] = {}
        self._jobs: dict[int, Job] = {}
        self._stopping: dict[str, int] = {}
        self._booting: dict[str, Sandbox] = {}
        self._number = 0
        self._watch(client.fileno(), self._receive)
        self._watch(os.pidfd_open(parent), self.leave)
        if os.getppid() != parent:
            self.leave()

    def run(self) -> None:
        while True:
            for fd, _ in self._poll.poll(self._time_to_deadline()):
                # One event may end what a later one of the same round is about.
                if fd in self._watched:
                    self._watched[fd]()
            self._end_overdue()

    def _watch(self, fd: int, react: Callable[[], None]) -> None:
        self._watched[fd] = react
        self._poll.register(fd, select.EPOLLIN)

    def _forget(self, fd: int) -> None:
        del self._watched[fd]
        self._poll.unregister(fd)
        os.close(fd)

    def leave(self) -> None:
        # Every sandbox's first process dies with this one, and takes its namespace along; groups would stay.
        if self._cgroups is not None:
            self._remove_groups(self._cgroups)
        os._exit(0)

    def _remove_groups(self, cgroups: ControlGroups) -> None:
        for sandbox in (*self._sandboxes.values(), *self._booting.values()):
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
        cgroups.close()

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

    def _receive(self) -> None:
        try:
            chunk = self._client.recv(_RECEIVE)
        except ConnectionError:
            chunk = b""
        if not chunk:
            self.leave()
        self._inbox += chunk
        for message in decode(self._inbox):
            request = message.pop("id")
            operation = message.pop("op")
            try:
                getattr(self, f"_do_{operation}")(request, **message)
            except NoSuchSandbox as error:
                self._answer(request, lost=str(error.strerror or error))
            except OSError as error:
                self._answer(request, error=str(error))

    def _answer(self, request: int, **fields: Any) -> None:
        try:
            self._client.sendall(encode({"id": request, **fields}))
        except (BrokenPipeError, ConnectionError):
            self.leave()

    def _sandbox(self, name: str) -> Sandbox:
        if name not in self._sandboxes:
            raise NoSuchSandbox(0, f"sandbox {name} is not running")
        return self._sandboxes[name]

    def _do_probe(self, request: int) -> None:
        self._answer(request, **probe(), owner=root_id(self._as_root))

    # Sandboxes

    def _do_boot(self, request: int, name: str, plan: BootPlan) -> None:
        here, there = socket.socketpair()
        flags = namespaces(plan["network"]) | (0 if self._as_root else kernel.NEW_USER)
        self._number += 1
        group = self._open_group(f"{os.getpid()}-{self._number}", plan)
        pid = kernel.clone(flags)
        if pid == 0:
            boot(plan, there, self._as_root, group)
        there.close()
        deadline = None if plan["lifetime"] is None else time.monotonic() + plan["lifetime"]
        sandbox = Sandbox(name, pid, os.pidfd_open(pid), plan["network"], self._as_root, group, deadline)
        sandbox.many_ids = plan["many_ids"]
        self._booting[name] = sandbox
        channel = here.detach()
        said = bytearray()
        self._watch(channel, lambda: self._on_boot(request, sandbox, channel, said))

    def _on_boot(self, request: int, sandbox: Sandbox, channel: int, said: bytearray) -> None:
        chunk = os.read(channel, 4096)
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
            self._forget(channel)
            self._sandboxes[sandbox.name] = self._booting.pop(sandbox.name)
            self._watch(sandbox.pidfd, lambda: self._on_end(sandbox))
            self._answer(request, ok=True)
        else:
            why = said.decode(errors="replace").partition("e")[2]
            self._boot_failed(request, sandbox, channel, why or "its first process died")

    def _boot_failed(self, request: int, sandbox: Sandbox, channel: int, why: str) -> None:
        self._forget(channel)
        del self._booting[sandbox.name]
        os.waitpid(sandbox.pid, 0)
        sandbox.close()
        self._close_group(sandbox.group)
        self._answer(request, error=f"the sandbox could not be made: {why}")

    def _do_stop(self, request: int, name: str) -> None:
        sandbox = self._sandboxes.get(name)
        if sandbox is None:
            if name in self._booting:
                os.kill(self._booting[name].pid, signal.SIGKILL)
            self._answer(request, ok=True)
            return
        self._stopping[name] = request
        os.kill(sandbox.pid, signal.SIGKILL)

    def _on_end(self, sandbox: Sandbox) -> None:
        os.waitpid(sandbox.pid, 0)
        self._poll.unregister(sandbox.pidfd)
        del self._watched[sandbox.pidfd], self._sandboxes[sandbox.name]
        sandbox.close()
        self._close_group(sandbox.group)
        if sandbox.name in self._stopping:
            self._answer(self._stopping.pop(sandbox.name), ok=True)

    # Commands

    def _do_exec(self, request: int, name: str, plan: Any, timeout: float | None) -> None:
        sandbox = self._sandbox(name)
        deadline = None if timeout is None else time.monotonic() + timeout
        command = start(request, sandbox, plan, deadline, guarded=sandbox.view is not None)
        self._commands[request] = command
        for stream in command.streams:
            self._watch(stream, lambda stream=stream: self._on_output(command, stream))  # type: ignore[misc]
        self._watch(command.pidfd, lambda: self._on_exit(command))

    def _do_cancel(self, request: int, cancelled: int) -> None:
        if cancelled in self._commands:
            self._commands[cancelled].end()
        if cancelled in self._jobs:
            for pid in self._jobs[cancelled].pids:
                os.kill(pid, signal.SIGKILL)

    def _on_output(self, command: Command, stream: int) -> None:
        if not command.read(stream):
            del command.streams[stream]
            self._forget(stream)

    def _on_exit(self, command: Command) -> None:
        self._forget(command.pidfd)
        command.drain()
        code = exit_code(command.pid)
        del self._commands[command.request]
        self._answer(
            command.request,
            code=code,
            timed_out=command.timed_out,
            stdout=bytes(command.output["stdout"]),
            stderr=bytes(command.output["stderr"]),
        )
        for kept in command.output.values():
            kept.clear()
        for stream in command.streams:
            self._watched[stream] = lambda stream=stream: self._discard(stream)  # type: ignore[misc]

    def _discard(self, stream: int) -> None:
        # What made the stream readable may have been drained since, in the same round of events.
        with contextlib.suppress(BlockingIOError):
            if not os.read(stream, _RECEIVE):
                self._forget(stream)

    def _time_to_deadline(self) -> float | None:
        ends = [command.deadline for command in self._commands.values()]
        ends += [sandbox.deadline for sandbox in self._sandboxes.values()]
        deadlines = [end for end in ends if end is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for command in self._commands.values():
            if command.deadline is not None and command.deadline <= now:
                command.deadline = None
                command.timed_out = True
                command.end()
        for sandbox in self._sandboxes.values():
            if sandbox.deadline is not None and sandbox.deadline <= now:
                sandbox.deadline = None
                with contextlib.suppress(ProcessLookupError):
                    os.kill(sandbox.pid, signal.SIGKILL)

    # Files

    def _do_upload(
        self,
        request: int,
        name: str,
        source: str,
        target: str,
        directory: bool,
        owner: str = "",
        mode: int | None = None,
    ) -> None:
        pack, unpack = _FILE_ENDS[directory]
        self._transfer(
            request,
            self._sandbox(name),
            lambda stream: pack(source, stream),
            lambda stream: unpack(target, stream, on_host=False, owner=owner, mode=mode),
            inward=True,
        )

    def _do_download(self, request: int, name: str, source: str, target: str, directory: bool) -> None:
        pack, unpack = _FILE_ENDS[directory]
        self._transfer(
            request,
            self._sandbox(name),
            lambda stream: pack(source, stream),
            lambda stream: unpack(target, stream, on_host=True),
            inward=False,
        )

    def _transfer(
        self,
        request: int,
        sandbox: Sandbox,
        pack: Callable[[int], None],
        unpack: Callable[[int], None],
        *,
        inward: bool,
    ) -> None:
        reader, writer = os.pipe()
        errors, complaints = os.pipe()

        def side(work: Callable[[int], None], own: int, other: int) -> Callable[[], None]:
            def body() -> None:
                os.dup2(complaints, 2)
                os.close(other)
                work(own)

            return body

        packer, unpacker = side(pack, writer, reader), side(unpack, reader, writer)
        try:
            inner = spawn(sandbox, unpacker if inward else packer)
            outer = spawn_on_host(packer if inward else unpacker)
        except OSError:
            os.close(errors)
            raise
        finally:
            for fd in (reader, writer, complaints):
                os.close(fd)
        self._work(Job(request, {inner, outer}, errors))

    def _work(self, job: Job) -> None:
        self._jobs[job.request] = job
        for pid in job.pids:
            pidfd = os.pidfd_open(pid)
            self._watch(pidfd, lambda pid=pid, pidfd=pidfd: self._on_worker_exit(job, pid, pidfd))  # type: ignore[misc]

    def _on_worker_exit(self, job: Job, pid: int, pidfd: int) -> None:
        self._forget(pidfd)
        job.failed |= exit_code(pid) != 0
        job.pids.remove(pid)
        if job.pids:
            return
        del self._jobs[job.request]
        complaint = job.complaint()
        if job.failed:
            self._answer(job.request, error=complaint or "it was killed")
        else:
            self._answer(job.request, ok=True)

    # Verification

    def _do_prepare_verification(self, request: int, name: str, workdir: str) -> None:
        sandbox = self._sandbox(name)
        sandbox.close_view()
        links = host_links()
        errors, complaints = os.pipe()
        here, there = socket.socketpair()
        owner = root_id(self._as_root)

        def body() -> None:
            os.dup2(complaints, 2)
            here.close()
            end_terminal()
            signs = "\0".join(find_signs(workdir, links)).encode()
            socket.send_fds(there, [b"v", signs], [open_view(owner)])

        try:
            worker = spawn(sandbox, body, keep_rights=True)
        except OSError:
            os.close(errors)
            here.close()
            raise
        finally:
            os.close(complaints)
            there.close()
        self._watch(here.fileno(), lambda: self._on_view(sandbox, here))
        self._work(Job(request, {worker}, errors))

    def _on_view(self, sandbox: Sandbox, channel: socket.socket) -> None:
        said, fds, _, _ = socket.recv_fds(channel, _RECEIVE, 1)
        self._forget(channel.detach())
        if fds:
            sandbox.view = fds[0]
            self._signs[sandbox.name] = [sign for sign in said[1:].decode().split("\0") if sign]

    def _do_signs(self, request: int, name: str) -> None:
        """What the last preparation of a verification found that the agent had left for it."""
        self._answer(request, signs=self._signs.pop(name, []))

    def _do_end_verification(self, request: int, name: str) -> None:
        self._sandbox(name).close_view()
        self._answer(request, ok=True)


_FILE_ENDS: dict[bool, tuple[Any, Any]] = {
    True: (transfer.pack_directory, transfer.unpack_directory),
    False: (transfer.pack_file, transfer.unpack_file),
}


def main() -> None:
    # It was inherited to get here; what runs in a sandbox must not inherit it in turn.
    os.set_inheritable(int(sys.argv[1]), False)
    client = socket.socket(fileno=int(sys.argv[1]))
    parent, label = int(sys.argv[2]), sys.argv[3]
    # When memory runs out it is a sandbox that has to give way, not the training process.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as setting:
        setting.write("300")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = Keeper(client, parent, label)
    signal.signal(signal.SIGTERM, lambda number, frame: keeper.leave())
    keeper.run()
