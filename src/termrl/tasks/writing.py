"""Writes generated tasks to the cache, by content.

The directory is named after the hash of what is in it and appears whole or not at all: processes may write
it at the same time, and a change of the generator makes a new directory.
"""

import errno
import hashlib
import shutil
import tempfile
from pathlib import Path

from termrl.cache import cache_directory
from termrl.tasks.errors import UnwritableCacheError

type Files = dict[str, tuple[str, int]]
"""The content and mode of files, by their path below a directory."""


def written_directory(name: str, files: Files) -> Path:
    """The directory of the cache that holds exactly these files, written if it isn't there yet."""
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]
    root = cache_directory() / "tasks" / f"{name}-{digest}"
    if not root.is_dir():
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            write_whole(root, files)
        except OSError as error:
            raise UnwritableCacheError(
                f"The built-in tasks cannot be written to {root}: {error.strerror}; "
                "set XDG_CACHE_HOME to a directory that can be written to."
            ) from error
    return root


def write_whole(root: Path, files: Files) -> None:
    """Write a new directory in one go; one that another process made meanwhile is left as it is."""
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        # Modes are set, not left to the umask: they become the modes of the files in the sandbox.
        draft.chmod(0o755)
        for directory in sorted({parent for name in files for parent in Path(name).parents[:-1]}):
            (draft / directory).mkdir()
            (draft / directory).chmod(0o755)
        for name, (content, mode) in files.items():
            path = draft / name
            path.write_text(content)
            path.chmod(mode)
        draft.rename(root)
    except OSError as error:
        # Another process was first; what it wrote is the same.
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
