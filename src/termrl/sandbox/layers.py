"""Read-only directories that sandboxes start from, built once and kept by the hash of what went into them.

A layer appears whole or not at all: it is made under a name of its own and renamed. Two processes may build
the same one at once; the first to finish wins. What a killed process left unfinished the next one removes.
"""

import contextlib
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from termrl.cache import cache_directory
from termrl.sandbox.base import base_key, write_base
from termrl.sandbox.errors import SandboxUnavailable
from termrl.sandbox.keeper.boot import copy_tree
from termrl.sandbox.tmux import Tmux

_UNFINISHED = ".building-"


def default_layers_dir() -> Path:
    """`termrl/layers` in the user's cache directory."""
    return cache_directory() / "layers"


@dataclass(frozen=True)
class LayerStore:
    """`owner` is the host's id for root inside; without `overlay` each layer is a whole root of its own."""

    root: Path
    owner: int
    overlay: bool

    def open(self) -> None:
        """Make the directory and clear away what dead processes left in it."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if not os.access(self.root, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise SandboxUnavailable(
                f"The sandbox cache {self.root} can't be written ({error.strerror}): "
                "set XDG_CACHE_HOME to a directory of your own."
            ) from error
        for path in self.root.glob(f"{_UNFINISHED}*"):
            if not _is_alive(path.name.removeprefix(_UNFINISHED)):
                remove_tree(path)

    def base(self, tmux: Tmux | None) -> str:
        """The layer below all others, made on first use."""
        name = f"base-{base_key(self.owner, tmux)}"
        if not (self.root / name).is_dir():
            with self.building(name) as directory:
                write_base(directory, self.owner, tmux)
        return name

    def has(self, name: str) -> bool:
        return (self.root / name).is_dir()

    def lowers(self, base: str, layer: str | None) -> list[str]:
        """What a sandbox on `layer` is stacked from, top first."""
        if layer is None:
            return [base]
        return [f"{layer}/upper", base] if self.overlay else [f"{layer}/root"]

    def new_directory(self) -> Path:
        """A directory that is this process's alone, and is swept up by others if it dies."""
        directory = self.root / f"{_UNFINISHED}{_identity()}-{uuid.uuid4().hex[:8]}"
        directory.mkdir(parents=True)
        return directory

    @contextlib.contextmanager
    def building(self, name: str) -> Iterator[Path]:
        """A new directory that becomes the layer `name` when the block ends well."""
        directory = self.new_directory()
        try:
            yield directory
            with contextlib.suppress(OSError):  # another process was first; its layer is as good
                directory.rename(self.root / name)
        finally:
            if directory.exists():
                remove_tree(directory)
        if not self.has(name):
            raise SandboxUnavailable(f"The sandbox layer {name} could not be kept in {self.root}.")

    def place_for_changes(self, directory: Path, base: str) -> str:
        """Where in `directory` a build keeps its changes, as the keeper's `keep_in`."""
        if self.overlay:
            return directory.name
        root = directory / "root"
        root.mkdir()
        copy_tree(str(self.root / base), str(root))
        return f"{directory.name}/root"

    def finish(self, directory: Path) -> None:
        """Drop what only the build needed."""
        remove_tree(directory / "work")


def remove_tree(path: Path) -> None:
    """Remove a tree of ours, whatever modes its directories have."""
    if not path.exists():
        return
    for folder, directories, _ in os.walk(path):
        for name in (".", *directories):
            inner = os.path.join(folder, name)
            if not os.path.islink(inner) and os.stat(inner).st_mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(inner, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def _identity() -> str:
    return f"{os.getpid()}-{_start_time(os.getpid())}"


def _start_time(pid: int) -> str:
    """Tells a process from a later one of the same number."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _is_alive(unfinished: str) -> bool:
    pid, started, *_ = unfinished.split("-")
    return _start_time(int(pid)) == started
