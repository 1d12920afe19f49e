"""Finds the tmux that terminals inside a sandbox run on: the host's, or the one set-up unpacked."""

from dataclasses import dataclass
from pathlib import Path

import termrl

_SYSTEM = (Path("/usr/bin/tmux"), Path("/usr/local/bin/tmux"))
_LIBRARIES = ("usr/lib", "lib")


@dataclass(frozen=True)
class Tmux:
    """A tmux program; `libraries` are the directories a private one loads from."""

    program: Path
    libraries: tuple[Path, ...] = ()

    @property
    def private(self) -> bool:
        return bool(self.libraries)


def project_tools() -> Path:
    """Where set-up puts programs the host lacks: `.tools` beside `src`."""
    return Path(termrl.__file__).resolve().parents[2] / ".tools"


def find_tmux(system: tuple[Path, ...] = _SYSTEM, tools: Path | None = None) -> Tmux | None:
    """The tmux to use, or None where there is none."""
    for program in system:
        if program.is_file():
            return Tmux(program)
    unpacked = (tools or project_tools()) / "tmux"
    program = unpacked / "usr/bin/tmux"
    if not program.is_file():
        return None
    roots = [unpacked / part for part in _LIBRARIES]
    found = {path.parent for root in roots for path in root.rglob("*.so*")}
    return Tmux(program, tuple(sorted(found)) or (unpacked / _LIBRARIES[0],))
