"""Control groups for sandboxes: cpu, memory and processes, by version 2 where it has the controller, else 1.

Groups are made below the keeper's own, so whatever holds this process holds the sandboxes too. Each keeper
has one directory, named by its run and its process, and each sandbox one in that. A controller that can't be
had is left out; `Findings.cgroups` says which are there.
"""

import contextlib
import os
from dataclasses import dataclass, field
from typing import TypedDict

CONTROLLERS = ("cpu", "memory", "pids")
PREFIX = "termrl."
_PERIOD = 100_000


class Limits(TypedDict):
    """What a sandbox may use at most; None is not limited here."""

    cpus: float | None
    memory_mb: int | None
    pids: int | None


@dataclass
class Group:
    """One sandbox's directories, one in each hierarchy it is limited in."""

    paths: list[str] = field(default_factory=list)
    entrances: list[int] = field(default_factory=list)

    def admit(self, pid: int) -> None:
        for entrance in self.entrances:
            os.write(entrance, str(pid).encode())

    def join(self) -> None:
        """Put the calling process in; it must not have entered a user namespace yet."""
        for entrance in self.entrances:
            os.write(entrance, b"0")

    def close(self) -> bool:
        """Remove the directories; False while something in them is still ending."""
        for entrance in self.entrances:
            os.close(entrance)
        self.entrances = []
        self.paths = [path for path in self.paths if not _removed(path)]
        return not self.paths


class ControlGroups:
    def __init__(self, label: str, mounts: str = "/proc/self/mounts", own: str = "/proc/self/cgroup") -> None:
        """`label` goes into the directory's name, so that what a crash left can be told apart."""
        self._homes: dict[str, tuple[int, str]] = {}
        name = f"{PREFIX}{label}"
        for version, parent, controller in _parents(mounts, own):
            if controller in self._homes:
                continue
            home = os.path.join(parent, name)
            try:
                os.makedirs(home, exist_ok=True)
                if version == 2:
                    _enable(home, controller)
            except OSError:
                continue
            self._homes[controller] = (version, home)

    @property
    def controllers(self) -> dict[str, int]:
        """Each controller that works here, with the version it is had by."""
        return {controller: version for controller, (version, _) in sorted(self._homes.items())}

    def open(self, name: str, limits: Limits) -> Group | None:
        """A group with these limits, or None where nothing of them can be limited by one."""
        settings = {
            "cpu": _cpu(limits["cpus"]),
            "memory": _memory(limits["memory_mb"]),
            "pids": _pids(limits["pids"]),
        }
        group = Group()
        made: set[str] = set()
        for controller, (version, home) in self._homes.items():
            wanted = settings[controller].get(version)
            if not wanted:
                continue
            path = os.path.join(home, name)
            if path not in made:
                os.makedirs(path, exist_ok=True)
                made.add(path)
                group.paths.append(path)
                group.entrances.append(
                    os.open(os.path.join(path, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)
                )
            for file, value, needed in wanted:
                try:
                    _write(os.path.join(path, file), value)
                except OSError:
                    if needed:
                        raise
        return group if group.paths else None

    def close(self) -> None:
        for home in {home for _, home in self._homes.values()}:
            remove(home)


def available_controllers() -> dict[str, int]:
    """Each controller by which sandboxes can be limited here, found out by making a group."""
    trial = ControlGroups(f"probe-{os.getpid()}")
    trial.close()
    return trial.controllers


def remove(home: str) -> bool:
    """Remove a keeper's directory and the sandboxes' in it; False where something still runs there."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(home):
            if entry.is_dir(follow_symlinks=False):
                _removed(entry.path)
    return _removed(home)


def labelled(mounts: str = "/proc/self/mounts") -> dict[str, list[str]]:
    """Every keeper's directory on this host, by its label: in any hierarchy, at any depth."""
    found: dict[str, list[str]] = {}
    for _, mount, _ in _hierarchies(mounts):
        for folder, names, _ in os.walk(mount):
            for name in [name for name in names if name.startswith(PREFIX)]:
                found.setdefault(name.removeprefix(PREFIX), []).append(os.path.join(folder, name))
                names.remove(name)
    return found


def _parents(mounts: str, own: str) -> list[tuple[int, str, str]]:
    """Where each controller's groups could be made, best first."""
    with open(own) as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    places = {kind: path for _, kind, path in lines}
    candidates: list[tuple[int, str, str]] = []
    for version, mount, options in _hierarchies(mounts):
        if version == 2:
            here = places.get("", "/").strip("/")
            # Upwards: a group that holds processes can't have controllers for its children.
            ladder = ["/".join(here.split("/")[:depth]) for depth in range(len(here.split("/")), 0, -1)]
            for path in dict.fromkeys([*ladder, ""]):
                for controller in CONTROLLERS:
                    candidates.append((2, os.path.join(mount, path), controller))
            continue
        for controller in CONTROLLERS:
            if controller not in options:
                continue
            for kind, path in places.items():
                if controller in kind.split(","):
                    candidates.append((1, os.path.join(mount, path.strip("/")), controller))
    candidates.sort(key=lambda candidate: -candidate[0])
    return [each for each in candidates if os.access(each[1], os.W_OK) and _offers(*each)]


def _offers(version: int, parent: str, controller: str) -> bool:
    if version == 1:
        return True
    with contextlib.suppress(OSError), open(os.path.join(parent, "cgroup.controllers")) as file:
        if controller not in file.read().split():
            return False
        if not _hands_down(parent, controller):
            _write(os.path.join(parent, "cgroup.subtree_control"), f"+{controller}")
        return _hands_down(parent, controller)
    return False


def _hands_down(parent: str, controller: str) -> bool:
    with open(os.path.join(parent, "cgroup.subtree_control")) as enabled:
        return controller in enabled.read().split()


def _enable(home: str, controller: str) -> None:
    _write(os.path.join(home, "cgroup.subtree_control"), f"+{controller}")


def _hierarchies(mounts: str) -> list[tuple[int, str, list[str]]]:
    found = []
    with open(mounts) as file:
        for line in file:
            _, mount, kind, options, *_ = line.split()
            if kind in ("cgroup", "cgroup2"):
                found.append((2 if kind == "cgroup2" else 1, mount, options.split(",")))
    return found


_Setting = dict[int, list[tuple[str, str, bool]]]


def _cpu(cpus: float | None) -> _Setting:
    if cpus is None:
        return {}
    quota = max(1000, int(cpus * _PERIOD))
    return {
        2: [("cpu.max", f"{quota} {_PERIOD}", True)],
        1: [("cpu.cfs_period_us", str(_PERIOD), True), ("cpu.cfs_quota_us", str(quota), True)],
    }


def _memory(memory_mb: int | None) -> _Setting:
    if memory_mb is None:
        return {}
    limit = str(memory_mb << 20)
    return {
        2: [("memory.max", limit, True), ("memory.swap.max", "0", False), ("memory.oom.group", "0", False)],
        1: [("memory.limit_in_bytes", limit, True), ("memory.memsw.limit_in_bytes", limit, False)],
    }


def _pids(pids: int | None) -> _Setting:
    if pids is None:
        return {}
    return {version: [("pids.max", str(pids), True)] for version in (1, 2)}


def _write(path: str, value: str) -> None:
    with open(path, "w") as file:
        file.write(value)


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
