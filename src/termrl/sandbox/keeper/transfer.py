"""Copies files between the host and a sandbox as a tar stream through a pipe.

One end runs on the host with the caller's rights, the other inside with the sandbox's: links planted inside
lead only to what is inside. Nothing that could lead out is ever written on the host.
"""

import contextlib
import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from typing import IO

from .inside import ids_of


class _Padded:
    """A file that yields exactly the size it was announced with, though it may shrink while being read."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        self._left -= wanted
        return self._file.read(wanted).ljust(wanted, b"\0")


def pack_directory(source: str, stream: int) -> None:
    with _writer(stream) as archive:
        _add_children(archive, source, "")


def pack_file(source: str, stream: int) -> None:
    with _writer(stream) as archive:
        if not stat.S_ISREG(os.stat(source).st_mode):
            raise OSError(f"{source} is not a regular file")
        _add(archive, os.path.realpath(source), os.path.basename(source))


def unpack_directory(
    target: str, stream: int, *, on_host: bool, owner: str = "", mode: int | None = None
) -> None:
    """Write the archive's entries below `target`. On the host, links that lead out of it are left out.

    Inside, they can be made `owner`'s, and be given all the same `mode`.
    """
    made = _missing_parents(target)
    os.makedirs(target, exist_ok=True)
    give = _giving(owner)
    for path in made:
        give(path)
    directories = []
    with _reader(stream) as archive:
        for member in archive:
            path = os.path.join(target, member.name)
            if on_host and not _stays_inside(member, target):
                continue
            if not member.isdir():
                _make_way(path)
            archive.extract(member, target, set_attrs=False, filter="fully_trusted")
            if mode is not None:
                member.mode = mode
            give(path)
            if member.isdir():
                directories.append((member, path))
            else:
                _set_attributes(member, path, on_host)
    # Last and deepest first: a directory that its owner may not write to must be filled by then.
    for member, path in reversed(directories):
        _set_attributes(member, path, on_host)


def unpack_file(target: str, stream: int, *, on_host: bool, owner: str = "", mode: int | None = None) -> None:
    """Write the one file of the archive to `target`, or into it where that is a directory."""
    with _reader(stream) as archive:
        member = archive.next()
        if member is None:
            return
        if target.endswith("/") or os.path.isdir(target):
            target = os.path.join(target, member.name)
        give = _giving(owner)
        made = _missing_parents(os.path.dirname(target) or ".")
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        _make_way(target)
        content = archive.extractfile(member)
        assert content is not None
        with open(target, "xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        if mode is not None:
            member.mode = mode
        for path in (*made, target):
            give(path)
        _set_attributes(member, target, on_host)


def _missing_parents(path: str) -> list[str]:
    missing = []
    while path and path != "/" and not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _giving(owner: str) -> Callable[[str], None]:
    if not owner:
        return lambda path: None
    uid, gid, _ = ids_of(owner)
    return lambda path: os.chown(path, uid, gid, follow_symlinks=False)


def _writer(stream: int) -> tarfile.TarFile:
    return tarfile.open(
        fileobj=os.fdopen(stream, "wb"), mode="w|", format=tarfile.GNU_FORMAT, bufsize=1 << 16
    )


def _reader(stream: int) -> tarfile.TarFile:
    return tarfile.open(fileobj=os.fdopen(stream, "rb"), mode="r|", bufsize=1 << 16)


def _add_children(archive: tarfile.TarFile, directory: str, prefix: str) -> None:
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        _add(archive, path, prefix + name)
        if os.path.isdir(path) and not os.path.islink(path):
            _add_children(archive, path, f"{prefix}{name}/")


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    archive.inodes = {}  # type: ignore[attr-defined] # every hard link travels as a file of its own
    with contextlib.suppress(FileNotFoundError):  # it went away while we were walking
        member = archive.gettarinfo(path, name)
        if member is None or not (member.isreg() or member.isdir() or member.issym()):
            return
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        if not member.isreg():
            archive.addfile(member)
            return
        # It may have been swapped for a link or a pipe since we looked: neither followed nor waited for.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            archive.addfile(member, _Padded(file, member.size))


def _make_way(path: str) -> None:
    if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
        os.unlink(path)


def _stays_inside(member: tarfile.TarInfo, target: str) -> bool:
    try:
        tarfile.data_filter(member, target)
    except tarfile.FilterError:
        return False
    return True


def _set_attributes(member: tarfile.TarInfo, path: str, on_host: bool) -> None:
    if member.issym():
        return
    os.chmod(path, member.mode & (0o777 if on_host else 0o7777))
    os.utime(path, (member.mtime, member.mtime))
