"""The files every sandbox on the host's own /usr starts from: its own /etc, home and prompt.

Nothing of the host's is copied but what its programs need to run (loader cache, alternatives, certificates,
terminal descriptions, language configuration). Accounts, prompt, host name and time zone are the sandbox's
own and the same everywhere, so that screens are.
"""

import functools
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from termrl.sandbox.init_program import INIT, init_program
from termrl.sandbox.tmux import Tmux

HOSTNAME = "sandbox"
PRIVATE_PROGRAMS = "/opt/termrl/bin"
# From the host, read-only; bound in, never copied.
HOST_DIRECTORIES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")

_FORMAT = b"base 2"
_BORROWED = (
    *(
        "alternatives",
        "ca-certificates",
        "ca-certificates.conf",
        "debian_version",
        "ld.so.cache",
        "ld.so.conf",
    ),
    *(
        "ld.so.conf.d",
        "locale.alias",
        "login.defs",
        "lsb-release",
        "magic",
        "magic.mime",
        "mime.types",
        "nanorc",
    ),
    *("os-release", "perl", "protocols", "rpc", "services", "shells", "skel", "ssl", "terminfo", "vim"),
)
_BORROWED_PATTERNS = ("java-*", "python3*")
_NEVER = ("ssl/private",)

_PROMPT = "PS1='\\u@\\h:\\w\\$ '\n"
_FILES = {
    "etc/passwd": (
        "root:x:0:0:root:/root:/bin/bash\n"
        "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
        "bin:x:2:2:bin:/bin:/usr/sbin/nologin\n"
        "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n"
        "user:x:1000:1000:user:/home/user:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "etc/group": (
        "root:x:0:\ndaemon:x:1:\nbin:x:2:\ntty:x:5:\nwww-data:x:33:\nuser:x:1000:\nnogroup:x:65534:\n"
    ),
    "etc/shadow": "root:*:19000:0:99999:7:::\nuser:*:19000:0:99999:7:::\nnobody:*:19000:0:99999:7:::\n",
    "etc/hostname": f"{HOSTNAME}\n",
    "etc/hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
    "etc/timezone": "Etc/UTC\n",
    "etc/profile": f'{_PROMPT}[ -n "$BASH_VERSION" ] && [ -r ~/.bashrc ] && . ~/.bashrc\ntrue\n',
    "etc/bash.bashrc": _PROMPT,
    "etc/inputrc": "set bell-style none\nset enable-bracketed-paste off\n",
    "root/.bashrc": _PROMPT,
    "var/lib/dpkg/status": "",
}
_DIRECTORIES = (
    *(
        "app",
        "dev",
        "etc",
        "home/user",
        "logs/agent",
        "logs/artifacts",
        "logs/verifier",
        "media",
        "mnt",
        "opt",
    ),
    *("proc", "root", "run/lock", "run/tmux", "srv", "sys", "tmp", "usr", "var/cache", "var/lib", "var/log"),
    *("var/spool", "var/tmp"),
)
_LINKS = {"etc/localtime": "/usr/share/zoneinfo/Etc/UTC", "etc/mtab": "/proc/self/mounts", "var/run": "/run"}
_OPEN_TO_ALL = {"tmp": 0o1777, "var/tmp": 0o1777, "run/tmux": 0o1777, "run/lock": 0o1777}
_LOGS = ("logs/agent", "logs/artifacts", "logs/verifier")


def host_directories() -> list[str]:
    """The host's directories that are bound in. Where it has links (/bin), the base has the same."""
    return [
        name for name in HOST_DIRECTORIES if Path("/", name).is_dir() and not Path("/", name).is_symlink()
    ]


@functools.lru_cache
def base_key(owner: int, tmux: Tmux | None) -> str:
    """Names the content: another host state, owner or tmux gives another key. Looked at once a process."""
    digest = hashlib.sha256(_FORMAT)
    digest.update(repr((owner, _FILES, _DIRECTORIES, host_directories())).encode())
    for path in [*_borrowed(), *_tmux_files(tmux)]:
        status = path.lstat()
        digest.update(f"{path} {status.st_mode} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def write_base(root: Path, owner: int, tmux: Tmux | None) -> None:
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in HOST_DIRECTORIES:
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(os.readlink(host))
        elif host.is_dir():
            (root / name).mkdir(exist_ok=True)
    for source in _borrowed():
        _borrow(source, root / source.relative_to("/"))
    for name, text in _FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o640 if name == "etc/shadow" else 0o644)
    for name, target in _LINKS.items():
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(target)
    write_init(root)
    if tmux is not None and tmux.private:
        write_tmux(root, tmux)
    set_owner(root, owner)
    for name, mode in _OPEN_TO_ALL.items():
        (root / name).chmod(mode)
    for name in _LOGS:
        (root / name).chmod(0o777)
    (root / "root").chmod(0o700)
    if owner != 0 and os.geteuid() == 0:  # elsewhere only root inside has an id at all
        os.chown(root / "home/user", owner + 1000, owner + 1000)


def _borrowed() -> Iterator[Path]:
    """Every file and link below the borrowed names that anyone on the host may read."""
    etc = Path("/etc")
    tops = [etc / name for name in _BORROWED] + [
        path for pattern in _BORROWED_PATTERNS for path in etc.glob(pattern)
    ]
    for top in sorted(tops):
        if not top.is_dir() or top.is_symlink():
            paths = [top] if os.path.lexists(top) else []
        else:
            paths = [Path(folder, name) for folder, _, names in os.walk(top) for name in names]
            paths += [
                Path(folder, name)
                for folder, names, _ in os.walk(top)
                for name in names
                if Path(folder, name).is_symlink()
            ]
        for path in sorted(paths):
            mode = path.lstat().st_mode
            if any(path.is_relative_to(etc / name) for name in _NEVER):
                continue
            if stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and mode & stat.S_IROTH):
                yield path


def _borrow(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)


def _tmux_files(tmux: Tmux | None) -> list[Path]:
    if tmux is None or not tmux.private:
        return []
    return [tmux.program, *(path for folder in tmux.libraries for path in sorted(folder.glob("*.so*")))]


def write_init(root: Path) -> None:
    program = root / INIT.lstrip("/")
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(init_program())
    program.chmod(0o755)


def write_tmux(root: Path, tmux: Tmux) -> None:
    """The unpacked tmux with its libraries, started through the loader so that nothing leaks into panes."""
    home = root / "opt/termrl/tmux"
    home.mkdir(parents=True)
    program, *libraries = _tmux_files(tmux)
    shutil.copy2(program, home / "tmux")
    for library in libraries:
        shutil.copy2(library.resolve(), home / library.name)
    start = root / PRIVATE_PROGRAMS.lstrip("/") / "tmux"
    start.parent.mkdir(parents=True)
    loader = loader_of(program)
    start.write_text(
        f'#!/bin/sh\nexec {loader} --argv0 tmux --library-path /opt/termrl/tmux /opt/termrl/tmux/tmux "$@"\n'
    )
    start.chmod(0o755)


def loader_of(program: Path) -> str:
    head = program.read_bytes()[:65536]
    start = head.index(b"/lib")
    return head[start : head.index(b"\0", start)].decode()


def set_owner(root: Path, owner: int) -> None:
    if os.geteuid() != 0 or owner == 0:
        return
    for folder, directories, files in os.walk(root):
        for name in (".", *directories, *files):
            os.chown(os.path.join(folder, name), owner, owner, follow_symlinks=False)
