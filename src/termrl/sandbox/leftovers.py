"""What runs have open on this host, and what a crash left behind.

Everything a run makes carries its label, with the process that made it. `find` lists all of it; `reap`
removes exactly what belongs to a process that is gone. What carries no label of ours is never touched.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from termrl.sandbox.keeper import cgroups
from termrl.sandbox.labels import OWNER, RUN, Label
from termrl.sandbox.layers import UNFINISHED, default_layers_dir, remove_tree

_SECONDS = 30
ENGINES = ("docker", "podman")


@dataclass(frozen=True)
class Belonging:
    """One thing of a run's: `kind` is sandbox, cgroup, layer, container, network or volume."""

    kind: str
    name: str
    label: Label
    backend: str
    remove: Callable[[], bool] = field(repr=False, compare=False)

    @property
    def left_over(self) -> bool:
        return not self.label.is_live


def find(layers_dir: Path | None = None, engines: tuple[str, ...] = ENGINES) -> list[Belonging]:
    """Everything that carries a run's label, by backend."""
    found = [*_sandboxes(), *_cgroups(), *_layers(layers_dir or default_layers_dir())]
    for engine in engines:
        if shutil.which(engine) is not None:
            found += _of_engine(engine)
    return found


def reap(layers_dir: Path | None = None, engines: tuple[str, ...] = ENGINES) -> list[Belonging]:
    """Remove what processes that are gone left behind; gives what was removed."""
    left = [each for each in find(layers_dir, engines) if each.left_over]
    # Containers before their networks, networks before volumes: the order in which they were found.
    return [each for each in left if each.remove()]


def _sandboxes() -> Iterator[Belonging]:
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            if Path(entry.path, "cmdline").read_bytes() != b"init\0":
                continue
            environ = Path(entry.path, "environ").read_bytes()
        except OSError:
            continue
        values = dict(
            part.split("=", 1) for part in environ.decode(errors="replace").split("\0") if "=" in part
        )
        if RUN not in values or OWNER not in values:
            continue
        pid = int(entry.name)
        name = values.get("termrl.sandbox", str(pid))
        yield Belonging("sandbox", name, Label(values[RUN], values[OWNER]), "local", partial(_kill, pid))


def _cgroups() -> Iterator[Belonging]:
    for name, paths in cgroups.labelled().items():
        label = Label.from_name(name)
        if label is None:
            continue
        for path in paths:
            yield Belonging("cgroup", path, label, "local", partial(cgroups.remove, path))


def _layers(root: Path) -> Iterator[Belonging]:
    for path in sorted(root.glob(f"{UNFINISHED}*")):
        label = Label.from_name(path.name.removeprefix(UNFINISHED).partition(".")[2])
        if label is not None:
            yield Belonging("layer", str(path), label, "local", partial(_remove_layer, path))


def _of_engine(engine: str) -> list[Belonging]:
    found: list[Belonging] = []
    listings = {
        "container": ["ps", "-a", "--filter", f"label={RUN}", "--format", "{{.ID}}"],
        "network": ["network", "ls", "--filter", f"label={RUN}", "--format", "{{.ID}}"],
        "volume": ["volume", "ls", "--filter", f"label={RUN}", "--format", "{{.Name}}"],
    }
    for kind, listing in listings.items():
        ids = (_output([engine, *listing]) or "").split()
        if not ids:
            continue
        described = json.loads(_output([engine, kind, "inspect", *ids]) or "[]")
        for each in described:
            labels = each.get("Config", each).get("Labels") or each.get("labels") or {}
            name = str(each.get("Name") or each.get("name") or each.get("Id")).lstrip("/")
            if RUN not in labels or OWNER not in labels:
                continue
            words = {
                "container": ["rm", "-f", "-v"],
                "network": ["network", "rm"],
                "volume": ["volume", "rm"],
            }[kind]
            command = [engine, *words, str(each.get("Id") or each.get("id") or name)]
            label = Label(labels[RUN], labels[OWNER])
            found.append(Belonging(kind, name, label, engine, partial(_succeeds, command)))
    return found


def _output(command: list[str]) -> str | None:
    """What the command prints; None where it fails, as it does where no engine runs."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout if ended.returncode == 0 else None


def _succeeds(command: list[str]) -> bool:
    return _output(command) is not None


def _kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True


def _remove_layer(path: Path) -> bool:
    remove_tree(path)
    return not path.exists()
