"""What lies beneath an imported image: mount points, the first process, and a tmux that any image can run.

It is the lowest layer, so a file that the image has itself is the image's. The tmux brings its own loader,
libraries and terminal descriptions: it runs on an image without any of them.
"""

import functools
import hashlib
import shutil
import subprocess
from pathlib import Path

from termrl.sandbox.base import PRIVATE_PROGRAMS, loader_of, set_owner, write_init
from termrl.sandbox.tmux import Tmux

_FORMAT = "foundation 2"
_DIRECTORIES = (
    *(
        "dev",
        "etc",
        "logs/agent",
        "logs/artifacts",
        "logs/verifier",
        "proc",
        "root",
        "run/tmux",
        "sys",
        "tmp",
    ),
    *("var/tmp", "opt/termrl"),
)
_OPEN_TO_ALL = {
    "tmp": 0o1777,
    "var/tmp": 0o1777,
    "run/tmux": 0o1777,
    **dict.fromkeys(("logs/agent", "logs/artifacts", "logs/verifier"), 0o777),
}
_TERMINALS = (
    "screen",
    "screen-256color",
    "tmux",
    "tmux-256color",
    "xterm",
    "xterm-256color",
    "linux",
    "vt100",
)
_LOCALE = Path("/usr/lib/locale/C.utf8")
_TERMINFO = ("/lib/terminfo", "/usr/share/terminfo", "/etc/terminfo")


@functools.lru_cache
def foundation_key(owner: int, tmux: Tmux | None) -> str:
    digest = hashlib.sha256(repr((_FORMAT, owner, _DIRECTORIES)).encode())
    for path in _programs(tmux):
        status = path.stat()
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def write_foundation(root: Path, owner: int, tmux: Tmux | None) -> None:
    for name in _DIRECTORIES:
        (root / name).mkdir(parents=True, exist_ok=True)
    write_init(root)
    if tmux is not None:
        _write_whole_tmux(root, tmux)
    set_owner(root, owner)
    for name, mode in _OPEN_TO_ALL.items():
        (root / name).chmod(mode)


def _write_whole_tmux(root: Path, tmux: Tmux) -> None:
    home = root / "opt/termrl/tmux"
    home.mkdir(parents=True)
    program, loader, *libraries = _programs(tmux)
    shutil.copy2(program, home / "tmux")
    shutil.copy2(loader, home / "loader")
    for library in libraries:
        shutil.copy2(library, home / library.name)
    start = root / PRIVATE_PROGRAMS.lstrip("/") / "tmux"
    start.parent.mkdir(parents=True)
    place = "/opt/termrl/tmux"
    start.write_text(
        f'#!/bin/sh\nexec {place}/loader --argv0 tmux --library-path {place} {place}/tmux "$@"\n'
    )
    start.chmod(0o755)
    if _LOCALE.is_dir():
        shutil.copytree(_LOCALE, root / _LOCALE.relative_to("/"))
    for terminal in _TERMINALS:
        for folder in _TERMINFO:
            described = Path(folder, terminal[0], terminal)
            if described.is_file():
                target = root / "etc/terminfo" / terminal[0] / terminal
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(described, target)
                break


@functools.lru_cache
def _programs(tmux: Tmux | None) -> list[Path]:
    """The program, its loader and all it loads."""
    if tmux is None:
        return []
    loader = Path(loader_of(tmux.program))
    search = ":".join(str(folder) for folder in tmux.libraries)
    options = ["--library-path", search] if search else []
    listing = subprocess.run(
        [str(loader), *options, "--list", str(tmux.program)], capture_output=True, text=True, check=True
    ).stdout
    libraries = {
        Path(words[2]) for line in listing.splitlines() if len(words := line.split()) > 2 and words[1] == "=>"
    }
    return [tmux.program, loader, *sorted(libraries)]
