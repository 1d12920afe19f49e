"""Runs a command as an ordinary user, from root: `python ordinary.py HOME COMMAND...`.

With WITH_SUBORDINATE_IDS in the environment it is one who was given ids to hand out.

The interpreter and the project may live under a home that only root can enter. In a mount namespace of its
own, each such home is replaced by an empty directory that shows just what the command needs to run.
"""

import os
import sys
from pathlib import Path

from termrl.sandbox.keeper import kernel

USER = 65534


def needed_paths() -> list[Path]:
    here = Path(__file__).resolve()
    import termrl

    places = {Path(sys.base_prefix), Path(sys.prefix), here.parents[2], Path(termrl.__file__).parents[2]}
    return sorted(place.resolve() for place in places)


def first_closed(path: Path) -> Path | None:
    for parent in reversed(path.parents):
        if not parent.stat().st_mode & 0o001:
            return parent
    return None


def open_the_way() -> None:
    os.unshare(kernel.NEW_MOUNT)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    behind: dict[Path, list[tuple[Path, int]]] = {}
    for path in needed_paths():
        closed = first_closed(path)
        if closed is not None:
            behind.setdefault(closed, []).append((path, os.open(path, os.O_PATH)))
    for closed, places in behind.items():
        kernel.mount("tmpfs", str(closed), "tmpfs", 0, "mode=755")
        for path, handle in places:
            path.mkdir(parents=True, exist_ok=True)
            kernel.mount(f"/proc/self/fd/{handle}", str(path), "", kernel.MS_BIND | kernel.MS_REC)


def give_subordinate_ids(home: str) -> None:
    """As an administrator would with `usermod --add-subuids`, seen in this mount namespace only."""
    granted = Path(home, "subordinate-ids")
    granted.write_text(f"{USER}:2000000:65536\n")
    for kind in ("subuid", "subgid"):
        kernel.mount(str(granted), f"/etc/{kind}", "", kernel.MS_BIND)


def main() -> None:
    home, *command = sys.argv[1:]
    open_the_way()
    if "WITH_SUBORDINATE_IDS" in os.environ:
        give_subordinate_ids(home)
    os.chown(home, USER, USER)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    os.chdir("/")
    os.execvpe(
        command[0], command, {**kept, "HOME": home, "HARBOR_TELEMETRY": "off", "PYTHONDONTWRITEBYTECODE": "1"}
    )


if __name__ == "__main__":
    main()
