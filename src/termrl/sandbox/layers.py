"""Read-only directories that sandboxes start from, built once and kept by the hash of what went into them.

A layer appears whole or not at all: it is made under a name of its own and renamed. Two processes may build
the same one at once; the first to finish wins. What a killed process left unfinished the next one removes,
and what no sandbox has stood on for a month.
"""

import contextlib
import os
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from termrl.cache import cache_directory
from termrl.sandbox.base import base_key, write_base
from termrl.sandbox.errors import SandboxUnavailable
from termrl.sandbox.foundation import foundation_key, write_foundation
from termrl.sandbox.keeper.boot import copy_tree, privileged, root_id, subordinate_ids, write_many_id_maps
from termrl.sandbox.keeper.kernel import NEW_USER
from termrl.sandbox.labels import Label, current_label
from termrl.sandbox.tmux import Tmux

UNFINISHED = ".building-"
KEPT_SECONDS = 30 * 24 * 3600
"""How long a layer is kept that no sandbox stands on. Images and snapshots stay until they are removed."""
_KEPT_PREFIXES = ("image-", "images", "snapshot-", ".")


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
        for path in unfinished(self.root):
            remove_tree(path)
        long_ago = time.time() - KEPT_SECONDS
        for path in self.root.iterdir():
            if not path.name.startswith(_KEPT_PREFIXES) and path.stat().st_mtime < long_ago:
                remove_tree(path)

    def base(self, tmux: Tmux | None) -> str:
        """The layer below all others on the host's /usr, made on first use."""
        name = f"base-{base_key(self.owner, tmux)}"
        if not self.has(name):
            with self.building(name) as directory:
                write_base(directory, self.owner, tmux)
        return name

    def foundation(self, tmux: Tmux | None) -> str:
        """The layer below an imported image, made on first use."""
        name = f"foundation-{foundation_key(self.owner, tmux)}"
        if not self.has(name):
            with self.building(name) as directory:
                write_foundation(directory, self.owner, tmux)
        return name

    def used(self, name: str) -> None:
        """Say that a sandbox stands on it."""
        with contextlib.suppress(OSError):
            os.utime(self.root / name)

    def has(self, name: str) -> bool:
        return (self.root / name).is_dir()

    def lowers(self, below: list[str], layer: str) -> list[str]:
        """What a sandbox on `layer` is stacked from, top first, where the layer was built on `below`."""
        return [f"{layer}/upper", *below] if self.overlay else [f"{layer}/root"]

    def new_directory(self) -> Path:
        """A directory that is this process's alone, and is swept up by others if it dies."""
        directory = self.root / f"{UNFINISHED}{uuid.uuid4().hex[:8]}.{current_label().as_name()}"
        directory.mkdir(parents=True)
        return directory

    @contextlib.contextmanager
    def new_layer(self) -> Iterator[Path]:
        """A new directory for a layer whose name is known when it is made; gone unless it was kept."""
        directory = self.new_directory()
        try:
            yield directory
        finally:
            if directory.exists():
                remove_tree(directory)

    def keep(self, directory: Path, name: str) -> None:
        with contextlib.suppress(OSError):  # there is one already; it is as good
            directory.rename(self.root / name)

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

    def place_for_changes(self, directory: Path, below: list[str]) -> str:
        """Where in `directory` a build keeps its changes, as the keeper's `keep_in`."""
        if self.overlay:
            return directory.name
        root = directory / "root"
        root.mkdir()
        for name in reversed(below):
            copy_tree(str(self.root / name), str(root))
        return f"{directory.name}/root"

    def finish(self, directory: Path) -> None:
        """Drop what only the build needed."""
        remove_tree(directory / "work")


def open_default_store() -> LayerStore:
    """The store in the user's cache, for whoever writes to it outside of a run."""
    store = LayerStore(default_layers_dir(), root_id(privileged()), overlay=True)
    store.open()
    return store


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
    if path.exists() and os.geteuid() != 0 and subordinate_ids():
        _remove_as_root_inside(path)


def _remove_as_root_inside(path: Path) -> None:
    """Files of an ordinary user's subordinate ids are nobody's but in a namespace that maps them."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.unshare(NEW_USER)
            there.sendall(b"u")
            there.recv(1)
            shutil.rmtree(path, ignore_errors=True)
        os._exit(0)
    there.close()
    with here, contextlib.suppress(OSError):
        if here.recv(1) == b"u":
            write_many_id_maps(child)
            here.sendall(b"g")
    os.waitpid(child, 0)


def unfinished(root: Path) -> list[Path]:
    """What processes that are gone left half built."""
    left = []
    for path in root.glob(f"{UNFINISHED}*"):
        label = Label.from_name(path.name.removeprefix(UNFINISHED).partition(".")[2])
        if label is None or not label.is_live:
            left.append(path)
    return left
