"""How one sandbox comes to be: its first process builds the root, goes into it and becomes `init`.

As root, everything is mounted with the host's rights first and the user namespace is entered last, so what
runs inside has no right over any of its namespaces and is never the host's root. As an ordinary user the
user namespace comes first, because nothing could be mounted without it. Either way the processes inside see
themselves as root, and the pid namespace ends when the keeper does.
"""

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import socket
import struct
from typing import NoReturn

from . import kernel
from .cgroups import Group
from .messages import BootPlan

# Host ids that the ids 0..65535 inside stand for when the keeper runs as root: nobody's, on any host.
MAPPED_IDS = 1_879_048_192
MAPPED_COUNT = 65_536

INIT = "/opt/termrl/init"
_MAPPERS = "/usr/bin:/bin:/usr/local/bin:/usr/sbin"

# Hidden under the memory file system while it holds the root being built; only in the sandbox's own view.
_STAGING = "/tmp"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def privileged() -> bool:
    """Whether this process is a root that owns the ids it would hand out."""
    if os.geteuid() != 0:
        return False
    with open("/proc/self/status") as status:
        held = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    with open("/proc/self/uid_map") as uid_map:
        spans = [tuple(map(int, line.split())) for line in uid_map]
    return bool(held >> 21 & 1) and any(
        first <= MAPPED_IDS and first + count >= MAPPED_IDS + MAPPED_COUNT for first, _, count in spans
    )


def root_id(as_root: bool) -> int:
    """The host's id for root inside, in the numbering of whoever builds the root file system."""
    return MAPPED_IDS if as_root else 0


def subordinate_ids() -> dict[str, tuple[int, int]]:
    """The first id and the count that this user was given of each kind; empty where there are none."""
    found: dict[str, tuple[int, int]] = {}
    names = {str(os.geteuid()), *_user_names(os.geteuid())}
    for kind in ("uid", "gid"):
        if shutil.which(f"new{kind}map", path=_MAPPERS) is None:
            return {}
        with contextlib.suppress(OSError, ValueError), open(f"/etc/sub{kind}") as file:
            for line in file:
                name, first, count = line.strip().split(":")
                if name in names and int(count) >= MAPPED_COUNT - 1:
                    found[kind] = (int(first), MAPPED_COUNT - 1)
    return found if len(found) == 2 else {}


def _user_names(uid: int) -> list[str]:
    with contextlib.suppress(OSError), open("/etc/passwd") as file:
        rows = [line.split(":") for line in file]
        return [row[0] for row in rows if len(row) > 2 and row[2] == str(uid)]
    return []


def write_many_id_maps(pid: int) -> None:
    """Root inside is this user, the other ids are its subordinate ones; the host's helpers have to do it."""
    own = {"uid": os.geteuid(), "gid": os.getegid()}
    for kind, (first, count) in subordinate_ids().items():
        program = f"new{kind}map"
        words = [program, str(pid), "0", str(own[kind]), "1", "1", str(first), str(count)]
        path = shutil.which(program, path=_MAPPERS) or program
        _, status = os.waitpid(os.posix_spawn(path, words, {}), 0)
        if status != 0:
            raise OSError(f"{program} refused")


def write_id_maps(pid: int, as_root: bool, many: bool = False) -> None:
    if many and not as_root:
        write_many_id_maps(pid)
        return
    if as_root:
        maps = {kind: f"0 {MAPPED_IDS} {MAPPED_COUNT}" for kind in ("uid", "gid")}
    else:
        with open(f"/proc/{pid}/setgroups", "w") as setgroups:
            setgroups.write("deny")
        maps = {"uid": f"0 {os.geteuid()} 1", "gid": f"0 {os.getegid()} 1"}
    for kind, line in maps.items():
        with open(f"/proc/{pid}/{kind}_map", "w") as id_map:
            id_map.write(line)


def namespaces(network: bool) -> int:
    own = kernel.NEW_MOUNT | kernel.NEW_PID | kernel.NEW_UTS | kernel.NEW_IPC
    return own if network else own | kernel.NEW_NET


def boot(plan: BootPlan, channel: socket.socket, as_root: bool, group: Group | None) -> NoReturn:
    """Runs as the first process of the new namespaces. Says 'u' to have its ids mapped, 'r' when ready."""
    try:
        if group is not None:
            group.join()
        if not as_root:
            _enter_user_namespace(channel)
        _build_root(plan, as_root)
        kernel.set_hostname(plan["hostname"])
        if not plan["network"]:
            _raise_loopback()
        if as_root:
            os.unshare(kernel.NEW_USER)
            _enter_user_namespace(channel)
        limit(plan["pids_limit"], None, kernel.GUARDED_CAPABILITIES)
        # Children it adopts are reaped by the kernel: init never waits for anyone.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        null = os.open("/dev/null", os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        kernel.die_with_parent()
        channel.sendall(b"r")
        os.execve(INIT, ["init"], plan["labels"])
    except BaseException as error:
        with contextlib.suppress(OSError):
            channel.sendall(f"e{_sentence(error)}".encode())
    os._exit(1)


def limit(pids: int, memory_mb: int | None, capabilities: frozenset[int]) -> None:
    """What every process inside is bound by. Processes are counted per user namespace: per sandbox."""
    resource.setrlimit(resource.RLIMIT_NPROC, (pids, pids))
    if memory_mb is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    kernel.limit_capabilities(capabilities)


def become_root(as_root: bool) -> None:
    """Take the ids that are root inside; needed where the namespace was entered from the host's root."""
    if as_root:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def _enter_user_namespace(channel: socket.socket) -> None:
    channel.sendall(b"u")
    if channel.recv(1) != b"g":
        raise OSError("the keeper went away")
    with contextlib.suppress(PermissionError):  # setgroups is denied where only one id is mapped
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _build_root(plan: BootPlan, as_root: bool) -> None:
    owner = root_id(as_root)
    os.umask(0o022)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    # Opened first: whatever lies under the staging directory is out of sight once it is mounted.
    layers = os.open(plan["layers_dir"], os.O_PATH | os.O_DIRECTORY)
    sources = [os.open(bind["source"], os.O_PATH) for bind in plan["binds"]]
    kernel.mount(
        "tmpfs",
        _STAGING,
        "tmpfs",
        kernel.MS_NOSUID | kernel.MS_NODEV,
        f"mode=755,uid={owner},gid={owner},size={plan['storage_mb']}m",
    )
    root = f"{_STAGING}/root"
    os.mkdir(root)
    os.chdir(layers)
    _mount_layers(plan, root, owner, layers, as_root)
    for bind, source in zip(plan["binds"], sources, strict=True):
        target = root + bind["target"]
        if os.path.realpath(target) != target:
            raise OSError(f"the mount target {bind['target']} leads through a link")
        if not os.path.exists(target):
            _make_mount_point(target, f"/proc/self/fd/{source}")
        kernel.bind(f"/proc/self/fd/{source}", target, read_only=bind["read_only"])
    _mount_devices(f"{root}/dev", owner)
    kernel.mount("proc", f"{root}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.change_root(root)
    # Only now: a link that a layer brought leads to the sandbox's own files, not to the host's.
    for path in plan["directories"]:
        if not os.path.isdir(path):
            os.makedirs(path)
            os.chown(path, owner, owner)
    for path, content in plan["files"].items():
        with open(path, "wb") as file:
            file.write(content)
            os.fchown(file.fileno(), owner, owner)


def _make_mount_point(target: str, source: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def _mount_layers(plan: BootPlan, root: str, owner: int, layers: int, as_root: bool) -> None:
    if not plan["overlay"]:
        if plan["keep_in"] is not None:
            kernel.bind(f"/proc/self/fd/{layers}/{plan['keep_in']}", root, read_only=False)
        else:
            kernel.bind(root, root, read_only=False)  # only a mount can become the root
            for lower in reversed(plan["lowers"]):
                copy_tree(lower, root)
        os.chown(root, owner, owner)
        return
    changes = _STAGING if plan["keep_in"] is None else f"/proc/self/fd/{layers}/{plan['keep_in']}"
    for name in ("upper", "work"):
        os.makedirs(f"{changes}/{name}", exist_ok=True)
        os.chown(f"{changes}/{name}", owner, owner)
    mount_overlay(root, plan["lowers"], changes, as_root)


def mount_overlay(root: str, lowers: list[str], changes: str, as_root: bool) -> None:
    options = f"lowerdir={':'.join(lowers)},upperdir={changes}/upper,workdir={changes}/work"
    if not as_root:
        options += ",userxattr"
    kernel.mount("overlay", root, "overlay", kernel.MS_NODEV, options)


def copy_tree(source: str, target: str) -> None:
    """A whole copy, owners and links kept: the way where the kernel refuses overlays."""
    for entry in os.scandir(source):
        path = f"{target}/{entry.name}"
        status = entry.stat(follow_symlinks=False)
        if os.path.lexists(path) and (os.path.islink(path) or not entry.is_dir()):
            os.unlink(path)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)
        elif entry.is_dir():
            os.makedirs(path, exist_ok=True)
            copy_tree(entry.path, path)
        elif entry.is_file():
            shutil.copyfile(entry.path, path)
        else:
            continue
        if os.geteuid() == 0 and status.st_uid >= MAPPED_IDS:
            os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)
        if not entry.is_symlink():
            os.chmod(path, status.st_mode & 0o7777)


def _mount_devices(directory: str, owner: int) -> None:
    flags = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("tmpfs", directory, "tmpfs", flags, f"mode=755,uid={owner},gid={owner},size=64k")
    for name in _DEVICES:
        os.close(os.open(f"{directory}/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        kernel.mount(f"/dev/{name}", f"{directory}/{name}", "", kernel.MS_BIND)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"{directory}/{name}")
    os.mkdir(f"{directory}/pts")
    kernel.mount("devpts", f"{directory}/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=620")
    os.mkdir(f"{directory}/shm")
    kernel.mount("tmpfs", f"{directory}/shm", "tmpfs", kernel.MS_NOSUID, "mode=1777,size=64m")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
    # Ports below 1024 are the sandbox's own to use; so is ping.
    for name, value in (("ip_unprivileged_port_start", "0"), ("ping_group_range", "0 0")):
        with contextlib.suppress(OSError), open(f"/proc/sys/net/ipv4/{name}", "w") as setting:
            setting.write(value)


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'a system call'}: {error.strerror}"
    return f"{type(error).__name__}: {error}"
