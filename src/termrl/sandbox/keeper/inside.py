"""Runs something inside a sandbox from the keeper: a program for the agent, or one of our own functions.

The process is born into the sandbox's pid namespace and joins the other ones itself. Its parent is the
keeper, which can wait for it.
"""

import functools
import mmap
import os
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from . import kernel
from .boot import become_root, limit, namespaces
from .cgroups import Group
from .messages import CommandPlan

# How a helper tells the keeper the child's pid, or why there is none.
_CHILD = struct.Struct("<ii")
_shared = mmap.mmap(-1, mmap.PAGESIZE)


class NoSuchSandbox(OSError):
    """The sandbox's first process is gone, and with it everything that ran there."""


@dataclass
class Sandbox:
    """A running sandbox: its first process, and the mount namespace of a verification if one is open."""

    name: str
    pid: int
    pidfd: int
    network: bool
    as_root: bool
    group: Group | None = None
    deadline: float | None = None
    many_ids: bool = False
    view: int | None = None

    def close(self) -> None:
        os.close(self.pidfd)
        self.close_view()

    def close_view(self) -> None:
        if self.view is not None:
            os.close(self.view)
            self.view = None


def spawn(sandbox: Sandbox, body: Callable[[], None], *, keep_rights: bool = False) -> int:
    """Run `body` as a new process inside and return its pid on the host.

    With `keep_rights` a root keeper's process stays out of the user namespace, to mount things.
    """
    try:
        pid = _fork_as_root(sandbox) if sandbox.as_root else _fork_through_helper(sandbox)
    except OSError as error:
        why = f"could not enter sandbox {sandbox.name}: {error.strerror}"
        raise NoSuchSandbox(error.errno, why) from error
    if pid == 0:
        _run(lambda: _enter(sandbox, body, keep_rights))
    return pid


def _fork_as_root(sandbox: Sandbox) -> int:
    """Fork with the child born into the sandbox's pid namespace; root may set that back afterwards."""
    os.setns(sandbox.pidfd, kernel.NEW_PID)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            os.setns(_own_pidfd(), kernel.NEW_PID)
    return pid


def _fork_through_helper(sandbox: Sandbox) -> int:
    """The same for an ordinary user, who may not: a helper goes in and leaves us a child there."""
    _CHILD.pack_into(_shared, 0, 0, 0)
    helper = os.fork()
    if helper == 0:
        code = 0
        try:
            os.setns(sandbox.pidfd, kernel.NEW_USER | kernel.NEW_PID)
            pid = kernel.clone(kernel.CLONE_PARENT)
            if pid == 0:
                return 0
        except OSError as error:
            pid, code = 0, error.errno or -1
        _CHILD.pack_into(_shared, 0, pid, code)
        os._exit(0)
    os.waitpid(helper, 0)
    pid, code = _CHILD.unpack_from(_shared)
    if pid == 0:
        raise OSError(code, os.strerror(code))
    return int(pid)


def spawn_on_host(body: Callable[[], None]) -> int:
    """Run `body` as a process beside the keeper, with the keeper's rights and lifetime."""
    pid = os.fork()
    if pid == 0:
        kernel.die_with_parent()
        _run(body)
    return pid


@functools.cache
def _own_pidfd() -> int:
    return os.pidfd_open(os.getpid())


def _enter(sandbox: Sandbox, body: Callable[[], None], keep_rights: bool) -> None:
    if sandbox.group is not None and not keep_rights:
        sandbox.group.join()
    flags = namespaces(sandbox.network) & ~kernel.NEW_PID
    if sandbox.as_root and not keep_rights:
        flags |= kernel.NEW_USER
    if sandbox.view is None:
        os.setns(sandbox.pidfd, flags)
    else:
        # The view belongs to whoever made it: the host's root, or the sandbox's own once we are that.
        if sandbox.as_root:
            os.setns(sandbox.view, kernel.NEW_MOUNT)
        os.setns(sandbox.pidfd, flags & ~kernel.NEW_MOUNT)
        if not sandbox.as_root:
            os.setns(sandbox.view, kernel.NEW_MOUNT)
    become_root(sandbox.as_root and not keep_rights)
    body()


def _run(body: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        body()
        status = 0
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
    finally:
        os._exit(status)


def program(plan: CommandPlan, stdout: int, stderr: int, guarded: bool) -> Callable[[], None]:
    """The body that becomes the program of `plan`; what goes wrong before that is said on its stderr."""

    def body() -> None:
        os.setsid()
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        capabilities = kernel.GUARDED_CAPABILITIES if guarded else kernel.AGENT_CAPABILITIES
        limit(plan["pids_limit"], plan["process_memory_mb"], capabilities)
        if plan["cpu_set"]:
            os.sched_setaffinity(0, plan["cpu_set"])
        kernel.adopt_orphans()
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        env = dict(plan["env"])
        try:
            if plan["user"] not in ("root", 0):
                env["HOME"] = _take_user(plan["user"])
            os.chdir(plan["cwd"])
            _become(plan["argv"], env)
        except OSError as error:
            os.write(2, f"sandbox: cannot run as {plan['user']} in {plan['cwd']}: {error}\n".encode())
            raise SystemExit(126) from error

    return body


def _become(argv: list[str], env: dict[str, str]) -> NoReturn:
    try:
        os.execve(argv[0], argv, env)
    except FileNotFoundError:
        if argv[0] == "/bin/bash":  # an image may have none
            os.execve("/bin/sh", ["/bin/sh", *argv[1:]], env)
        os.execvpe(argv[0], argv, env)


def _take_user(user: str | int) -> str:
    uid, gid, home = ids_of(str(user))
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    return home


def ids_of(owner: str) -> tuple[int, int, str]:
    """The ids and the home of `user` or `user:group`, by name or number, as the sandbox's files have them."""
    user, _, group = owner.partition(":")
    row = _row("/etc/passwd", user, 7)
    if row is not None:
        uid, gid, home = int(row[2]), int(row[3]), row[5]
    elif user.isdigit():
        uid, gid, home = int(user), int(user), "/"
    else:
        raise OSError(f"there is no user {user} in /etc/passwd")
    if group:
        named = _row("/etc/group", group, 4)
        if named is None and not group.isdigit():
            raise OSError(f"there is no group {group} in /etc/group")
        gid = int(named[2]) if named is not None else int(group)
    return uid, gid, home


def _row(path: str, key: str, fields: int) -> list[str] | None:
    try:
        with open(path, errors="replace") as file:
            rows = [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return None
    return next((row for row in rows if len(row) == fields and key in (row[0], row[2])), None)
