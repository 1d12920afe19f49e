"""The system calls a sandbox is made of, as functions that raise `OSError`.

`clone` is the raw call: the child is a copy of this single-threaded process and goes on from here.
"""

import ctypes
import errno
import os
import platform
import signal

CLONE_PARENT = 0x00008000
NEW_MOUNT = 0x00020000
NEW_UTS = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PID = 0x20000000
NEW_NET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_AT_EMPTY_PATH_FROM = 4
_OPEN_TREE_CLONE = 1
# The same on every architecture.
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442
_CALL_NUMBERS = {"x86_64": {"clone": 56, "pivot_root": 155}, "aarch64": {"clone": 220, "pivot_root": 41}}

# What a process inside may hold; the usual set of a container, without making device nodes.
_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _SETPCAP = 0, 1, 3, 4, 5, 6, 7, 8
_NET_BIND_SERVICE, _NET_RAW, _SYS_CHROOT, _LEASE, _AUDIT_WRITE, _SETFCAP = 10, 13, 18, 28, 29, 31
AGENT_CAPABILITIES = frozenset(
    {_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _SETPCAP}
    | {_NET_BIND_SERVICE, _NET_RAW, _SYS_CHROOT, _AUDIT_WRITE, _SETFCAP}
)
# One capability more than the agent's: the kernel then refuses an agent's process every look into
# /proc/PID/{mem,root,fd,environ} of such a process, and ptrace, although both run as the same user.
GUARDED_CAPABILITIES = AGENT_CAPABILITIES | {_LEASE}

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def _call_number(name: str) -> int:
    machine = platform.machine()
    if machine not in _CALL_NUMBERS:
        raise OSError(38, f"the local sandbox is not ported to {machine}", name)
    return _CALL_NUMBERS[machine][name]


def clone(flags: int) -> int:
    """Fork into new namespaces; 0 in the child, the child's pid here."""
    return _checked(
        _libc.syscall(_call_number("clone"), flags | signal.SIGCHLD.value, None, None, None, 0), "clone"
    )


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    _checked(
        _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()),
        f"mount {kind or source} on {target}",
    )


def bind(source: str, target: str, *, read_only: bool) -> None:
    mount(source, target, "", MS_BIND | MS_REC)
    if not read_only:
        return
    attributes = _MountAttr(attr_set=_MOUNT_ATTR_RDONLY)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        target.encode(),
        _AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.sizeof(attributes),
    )
    if result < 0:
        # Before Linux 5.12: remount, keeping the flags the host's mount is locked to.
        kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount("", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def take_tree(path: str) -> int:
    """A copy of what is mounted at and below `path`, attached nowhere yet."""
    return _checked(
        _libc.syscall(
            _SYS_OPEN_TREE, _AT_FDCWD, path.encode(), _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
        ),
        f"open_tree of {path}",
    )


def attach_tree(tree: int, target: str) -> None:
    _checked(
        _libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), _AT_EMPTY_PATH_FROM),
        f"move_mount to {target}",
    )
    os.close(tree)


def change_root(new_root: str) -> None:
    """Make `new_root` the root of this mount namespace and let go of the old one."""
    os.chdir(new_root)
    _checked(_libc.syscall(_call_number("pivot_root"), b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", MNT_DETACH), "umount of the host's root")
    os.chdir("/")


def set_hostname(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), len(name.encode())), "sethostname")


def die_with_parent() -> None:
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL.value, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """What this process's children leave running becomes its own child, so that it can be ended with it."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def limit_capabilities(kept: frozenset[int]) -> None:
    """Whatever runs after the next exec holds at most these."""
    for capability in range(64):
        if capability in kept or _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) >= 0:
            continue
        if ctypes.get_errno() == errno.EINVAL:  # past the last one this kernel has
            return
        _checked(-1, "prctl")
