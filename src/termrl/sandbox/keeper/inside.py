"""Runs something inside a sandbox from the keeper: a program for the agent, or one of our own functions.

A helper joins the sandbox's namespaces and clones the process that stays; its parent is the keeper itself,
so the keeper can wait for it. The helper is gone before `spawn` returns.
"""

import mmap
import os
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from . import kernel
from .boot import become_root, limit, namespaces
from .messages import CommandPlan

_PID = struct.Struct("<ii")
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
    view: int | None = None

    @property
    def flags(self) -> int:
        return namespaces(self.network) | kernel.NEW_USER

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
    _PID.pack_into(_shared, 0, 0, 0)
    helper = os.fork()
    if helper == 0:
        try:
            _join(sandbox, keep_rights)
            pid = kernel.clone(kernel.CLONE_PARENT)
            if pid == 0:
                _run(body, sandbox.as_root and not keep_rights)
            _PID.pack_into(_shared, 0, pid, 0)
        except OSError as error:
            _PID.pack_into(_shared, 0, 0, error.errno or -1)
        finally:
            os._exit(0)
    os.waitpid(helper, 0)
    pid, code = _PID.unpack_from(_shared)
    if pid == 0:
        raise NoSuchSandbox(code, f"could not enter sandbox {sandbox.name}: {os.strerror(code)}")
    return int(pid)


def spawn_on_host(body: Callable[[], None]) -> int:
    """Run `body` as a process beside the keeper, with the keeper's rights and lifetime."""
    pid = os.fork()
    if pid == 0:
        kernel.die_with_parent()
        _run(body, False)
    return pid


def _join(sandbox: Sandbox, keep_rights: bool) -> None:
    flags = sandbox.flags
    if sandbox.as_root and keep_rights:
        flags &= ~kernel.NEW_USER
    if sandbox.view is None:
        os.setns(sandbox.pidfd, flags)
        return
    # The view belongs to whoever made it: the host's root, or the sandbox's own once we are that.
    if sandbox.as_root:
        os.setns(sandbox.view, kernel.NEW_MOUNT)
    os.setns(sandbox.pidfd, flags & ~kernel.NEW_MOUNT)
    if not sandbox.as_root:
        os.setns(sandbox.view, kernel.NEW_MOUNT)


def _run(body: Callable[[], None], change_ids: bool) -> None:
    status = 1
    try:
        become_root(change_ids)
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
        limit(plan["pids_limit"], capabilities)
        kernel.adopt_orphans()
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        env = dict(plan["env"])
        try:
            if plan["user"] not in ("root", 0):
                env["HOME"] = _take_user(plan["user"])
            os.chdir(plan["cwd"])
            os.execve(plan["argv"][0], plan["argv"], env)
        except OSError as error:
            os.write(2, f"sandbox: cannot run as {plan['user']} in {plan['cwd']}: {error}\n".encode())
            raise SystemExit(126) from error

    return body


def _take_user(user: str | int) -> str:
    with open("/etc/passwd") as passwd:
        rows = [line.rstrip("\n").split(":") for line in passwd if line.count(":") == 6]
    for row in rows:
        if str(user) in (row[0], row[2]):
            uid, gid, home = int(row[2]), int(row[3]), row[5]
            break
    else:
        if not str(user).isdigit():
            raise OSError(f"there is no user {user} in /etc/passwd")
        uid, gid, home = int(user), int(user), "/"
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    return home
