"""The verifier's own view of a sandbox: the same files, with /logs/verifier and /tests that only it has.

The view has a root of its own, and each directory of the sandbox's root is attached to it. So nothing that
the agent left running can reach the two directories, nor remove what they hang on: the root they live in is
in no namespace but the verifier's.
"""

import os

from . import kernel

# Itself the top of a mount, so that nobody can remove it from under us.
_STAGING = "/dev/shm"
_PRIVATE = ("/logs/verifier", "/tests")


def open_view(owner: int) -> int:
    """Move this process into a new view and return a handle on it; `owner` is root inside."""
    os.unshare(kernel.NEW_MOUNT)
    os.umask(0o022)
    links, trees = _root_entries("/", skipped={"logs", "tests"})
    _, logs = _root_entries("/logs", skipped={"verifier"}) if _is_directory("/logs") else ({}, {})
    trees |= {f"logs/{name}": tree for name, tree in logs.items()}
    options = f"mode=755,uid={owner},gid={owner},size=1g"
    kernel.mount("tmpfs", _STAGING, "tmpfs", kernel.MS_NODEV, options)
    for path in ("/logs", *_PRIVATE):
        os.mkdir(_STAGING + path)
        os.chown(_STAGING + path, owner, owner)
    for name, target in links.items():
        os.symlink(target, f"{_STAGING}/{name}")
    for name, tree in trees.items():
        os.mkdir(f"{_STAGING}/{name}")
        kernel.attach_tree(tree, f"{_STAGING}/{name}")
    kernel.change_root(_STAGING)
    return os.open("/proc/self/ns/mnt", os.O_RDONLY)


def _root_entries(directory: str, skipped: set[str]) -> tuple[dict[str, str], dict[str, int]]:
    """The links in `directory`, and its directories as trees to attach elsewhere."""
    links, trees = {}, {}
    for name in sorted(set(os.listdir(directory)) - skipped):
        path = os.path.join(directory, name)
        if os.path.islink(path):
            links[name] = os.readlink(path)
        elif os.path.isdir(path):
            trees[name] = kernel.take_tree(path)
    return links, trees


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
