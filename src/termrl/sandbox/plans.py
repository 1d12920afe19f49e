"""What the keeper is told of a local sandbox: what it is made of, what runs in it, and with which limits."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from termrl.sandbox.base import HOSTNAME, PRIVATE_PROGRAMS, host_directories
from termrl.sandbox.client import HostFindings
from termrl.sandbox.definition import LocalDefinition, is_log_directory
from termrl.sandbox.keeper.cgroups import Limits
from termrl.sandbox.keeper.messages import Bind, BootPlan, CommandPlan
from termrl.sandbox.labels import current_label
from termrl.sandbox.layers import LayerStore
from termrl.sandbox.recipe import HOST_IMAGE, Run, Stage

_ENVIRONMENT = {
    "HOME": "/root",
    "HOSTNAME": HOSTNAME,
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "TMUX_TMPDIR": "/run/tmux",
}
_DEFAULT_STORAGE_MB = 2048
_DEFAULT_MEMORY_MB = 4096


class LocalPlans(LocalDefinition):
    def __init__(self, *args: Any, number: int, pids_limit: int, **kwargs: Any) -> None:
        """`number` tells the sandboxes of this process apart."""
        self._number = number
        self._pids_limit = pids_limit
        self._findings: HostFindings | None = None
        super().__init__(*args, **kwargs)
        self._name = f"{self.session_id}-{number}"

    def _boot_plan(self, store: LayerStore, lowers: list[str], stage: Stage, *, network: bool) -> BootPlan:
        on_host = self._recipe.image(stage).reference == HOST_IMAGE
        binds: list[Bind] = [
            {"source": f"/{name}", "target": f"/{name}", "read_only": True}
            for name in (host_directories() if on_host else [])
        ]
        directories = [*stage.directories, self.workdir] if stage is self._recipe.final else stage.directories
        for mount in self._mounts:
            if is_log_directory(mount["target"]):
                directories = [*directories, mount["target"]]
                continue
            read_only = bool(mount.get("read_only"))
            binds.append({"source": mount["source"], "target": mount["target"], "read_only": read_only})
        label = current_label()
        return {
            "layers_dir": str(store.root),
            "lowers": lowers,
            "keep_in": None,
            "overlay": store.overlay,
            "binds": binds,
            "directories": list(directories),
            "files": _network_files() if network else {},
            "hostname": HOSTNAME,
            "network": network,
            "storage_mb": self._storage_mb,
            "pids_limit": self._pids_limit,
            "limits": None,
            "process_memory_mb": None,
            # A bare host needs no other user, and asking for one costs a boot time.
            "many_ids": not self._has_one_id and bool(not on_host or self._recipe.built(self._recipe.final)),
            "lifetime": None,
            "labels": {**label.as_labels(), "termrl.sandbox": self._name},
        }

    def _command_plan(self, argv: list[str], cwd: str, env: Mapping[str, str]) -> CommandPlan:
        whole = {**_ENVIRONMENT, **self._recipe.final.env, **env}
        whole["PATH"] += f":{PRIVATE_PROGRAMS}"
        return {
            "argv": argv,
            "cwd": cwd,
            "env": whole,
            "user": "root",
            "pids_limit": self._pids_limit,
            "process_memory_mb": self._process_memory_mb,
            "cpu_set": self._cpu_set,
        }

    def _step_plan(self, step: Run) -> CommandPlan:
        """For a step of the build: no limits but the processes', and only what the stage has set."""
        return {
            "argv": list(step.argv),
            "cwd": step.workdir,
            "env": {**_ENVIRONMENT, **dict(step.env)},
            "user": step.user,
            "pids_limit": self._pids_limit,
            "process_memory_mb": None,
            "cpu_set": [],
        }

    @property
    def _controllers(self) -> Mapping[str, int]:
        return self._findings["cgroups"] if self._findings is not None else {}

    @property
    def _storage_mb(self) -> int:
        return self._effective_storage_mb or _DEFAULT_STORAGE_MB

    def _limits(self) -> Limits | None:
        """What a control group has to see to, if the task asks for anything: entering one takes time.

        Files are in memory, so the limits of the two are one there.
        """
        cpus, memory = self._effective_cpus, self._effective_memory_mb
        limits: Limits = {
            "cpus": cpus if "cpu" in self._controllers else None,
            "memory_mb": memory + self._storage_mb if memory and "memory" in self._controllers else None,
            "pids": None,
        }
        return limits if any(value is not None for value in limits.values()) else None

    @property
    def _process_memory_mb(self) -> int | None:
        """Of each process: for a task that names no limit, or where no group can hold it to what it names."""
        memory = self._effective_memory_mb
        if memory is None:
            return _DEFAULT_MEMORY_MB
        return None if "memory" in self._controllers else memory

    @property
    def _cpu_set(self) -> list[int]:
        """Some of the processors, another sandbox others, where no group can limit the share."""
        cpus = self._effective_cpus
        if cpus is None or "cpu" in self._controllers:
            return []
        there = sorted(os.sched_getaffinity(0))
        return [there[(self._number + place) % len(there)] for place in range(min(cpus, len(there)))]

    @property
    def _has_one_id(self) -> bool:
        return self._findings is not None and self._findings["ids"] == 1


def _network_files() -> dict[str, bytes]:
    """How the host finds names; a sandbox on its network needs the same."""
    files = {}
    for path in ("/etc/resolv.conf", "/etc/hosts"):
        if Path(path).is_file():
            files[path] = Path(path).read_bytes()
    files["/etc/hosts"] = files.get("/etc/hosts", b"") + f"127.0.0.1 {HOSTNAME}\n".encode()
    return files
