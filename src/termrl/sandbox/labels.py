"""Whose a sandbox is: the run's name and the process that started it, on everything that a run makes.

Containers, networks and volumes carry these as labels, a local sandbox as variables of its first process, its
control groups and half-built layers in their names. What carries the label of a process that is gone is left
over; what carries none is not ours.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

RUN, OWNER, EXPIRES = "termrl.run", "termrl.owner", "termrl.expires"
NO_RUN = "no-run"
_run: ContextVar[str] = ContextVar("run", default=NO_RUN)


@dataclass(frozen=True)
class Label:
    """`owner` is a process by its number, its start and the host's boot: none is taken for another."""

    run: str
    owner: str

    def as_labels(self) -> dict[str, str]:
        return {RUN: self.run, OWNER: self.owner}

    def as_name(self) -> str:
        return f"{self.run}.{self.owner}"

    @classmethod
    def from_name(cls, name: str) -> "Label | None":
        run, _, owner = name.rpartition(".")
        return cls(run, owner) if run and owner.count("-") == 2 else None

    @property
    def is_live(self) -> bool:
        return is_alive(self.owner)


@contextlib.contextmanager
def labelled_run(name: str) -> Iterator[None]:
    """Everything that is made in this block is the run's."""
    token = _run.set(re.sub(r"[^A-Za-z0-9_-]", "-", name) or NO_RUN)
    try:
        yield
    finally:
        _run.reset(token)


def current_label() -> Label:
    return Label(_run.get(), _identity_of(os.getpid()))


def identity(pid: int | None = None) -> str:
    """This process, or another one of this host, in a form that is never used again."""
    number = os.getpid() if pid is None else pid
    return f"{number}-{_start_time(number)}-{_boot()}"


@lru_cache(maxsize=1)
def _identity_of(pid: int) -> str:
    return identity(pid)


def is_alive(owner: str) -> bool:
    number, started, boot = (*owner.split("-"), "", "")[:3]
    if not number.isdecimal():
        return False
    return boot == _boot() and bool(started) and _start_time(int(number)) == started


def _start_time(pid: int) -> str:
    """Tells a process from a later one of the same number; empty for one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


@lru_cache(maxsize=1)
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
