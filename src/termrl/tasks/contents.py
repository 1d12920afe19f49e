"""What is in a task directory: how many files, how many bytes, and whether all of it can be carried.

One walk that reads no file. It refuses what would go wrong later and far away: a link that leads out of the
task (nobody knows what is there on another machine), and a file too big to be sent into every sandbox.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from termrl.tasks.errors import OutwardLinkError, OversizedFileError

LARGEST_FILE_BYTES = 512 * 1024**2


@dataclass(frozen=True, slots=True)
class TaskContents:
    """The size of a task directory, and a short digest of its files' names and sizes."""

    files: int
    size: int
    shape: str


def survey(task_dir: Path) -> TaskContents:
    """Walk a task directory; raises `OutwardLinkError` or `OversizedFileError`."""
    root = os.path.realpath(task_dir)
    top = len(os.fspath(task_dir).rstrip(os.sep)) + 1
    digest, count, total = hashlib.blake2b(digest_size=8), 0, 0
    for entry in _entries(os.fspath(task_dir)):
        name = entry.path[top:]
        if entry.is_symlink():
            _require_inside(entry.path, name, root, task_dir)
            digest.update(f"{name}\0->{os.readlink(entry.path)}\n".encode(errors="surrogateescape"))
            count += 1
            continue
        size = entry.stat(follow_symlinks=False).st_size
        if size > LARGEST_FILE_BYTES:
            raise OversizedFileError(
                f"The task {task_dir} has a file of {size / 1e9:.1f} GB, {name}; at most "
                f"{LARGEST_FILE_BYTES // 1024**2} MB are carried into a sandbox: fetch it in the Dockerfile."
            )
        digest.update(f"{name}\0{size}\n".encode(errors="surrogateescape"))
        count += 1
        total += size
    return TaskContents(count, total, digest.hexdigest())


def content_digest(task_dir: Path) -> str:
    """A digest of every byte of a task, and of who may execute it: it changes when the task does."""
    digest = hashlib.sha256()
    for entry in _entries(os.fspath(task_dir)):
        name = os.path.relpath(entry.path, task_dir)
        digest.update(f"{name}\0".encode(errors="surrogateescape"))
        if entry.is_symlink():
            digest.update(os.fsencode(os.readlink(entry.path)))
            continue
        digest.update(b"x" if entry.stat(follow_symlinks=False).st_mode & 0o100 else b"-")
        with open(entry.path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _entries(directory: str) -> Iterator["os.DirEntry[str]"]:
    """Every file and link below a directory, in the order of their names."""
    with os.scandir(directory) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(entry.path)
        else:
            yield entry


def _require_inside(path: str, name: str, root: str, task_dir: Path) -> None:
    target = os.path.realpath(path)
    if target != root and not target.startswith(root + os.sep):
        raise OutwardLinkError(
            f"In the task {task_dir} the link {name} leads out of it, to {os.readlink(path)}; "
            "put a copy of what it leads to in its place."
        )
