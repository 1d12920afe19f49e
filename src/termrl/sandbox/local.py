"""`LocalEnvironment`: a Harbor environment made of Linux namespaces, with no container engine.

Use it as `EnvironmentConfig(import_path="termrl.sandbox.local:LocalEnvironment")`. Inside, every absolute
path is the sandbox's own and the user is root; on `FROM termrl/host` the host's /usr is there read-only. Log
directories are not mounted from the host but downloaded, so nothing inside can write to a host directory.
"""

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy

from termrl.sandbox.base import HOSTNAME, PRIVATE_PROGRAMS, host_directories
from termrl.sandbox.build import Builder
from termrl.sandbox.client import HostFindings, KeeperClient
from termrl.sandbox.errors import CommandTimeout, SandboxLost, SandboxUnavailable, UnsupportedEnvironment
from termrl.sandbox.images import ImageStore
from termrl.sandbox.keeper.cgroups import Limits
from termrl.sandbox.keeper.messages import Bind, BootPlan, CommandPlan
from termrl.sandbox.labels import current_label
from termrl.sandbox.layers import LayerStore, default_layers_dir, remove_tree
from termrl.sandbox.lifetime import lifetime_seconds, task_config_beside
from termrl.sandbox.preflight import explain, require_local
from termrl.sandbox.recipe import HOST_IMAGE, WAYS_OUT, Image, Recipe, Run, Stage, read_dockerfile
from termrl.sandbox.snapshots import handle_for

_ENVIRONMENT = {
    "HOME": "/root",
    "HOSTNAME": HOSTNAME,
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "TMUX_TMPDIR": "/run/tmux",
}
_DEFAULT_STORAGE_MB = 2048
_DEFAULT_MEMORY_MB = 4096
_DEFAULT_PIDS = 1024
_SUBORDINATE_IDS = "have an administrator give you subordinate ids (`usermod --add-subuids`), run as root"
_numbers = itertools.count(1)
_stores: dict[tuple[Path, int, bool], LayerStore] = {}


class LocalEnvironment(BaseEnvironment):
    def __init__(
        self,
        *args: Any,
        layers_dir: str | None = None,
        pids_limit: int = _DEFAULT_PIDS,
        overlay: bool = True,
        base_images: Mapping[str, str] | None = None,
        lifetime: int | None = None,
        snapshots: str | None = None,
        keep_changes: bool = False,
        **kwargs: Any,
    ) -> None:
        """`overlay=False` copies roots into memory, as is done where the kernel refuses overlays.

        `base_images` maps the name of an image to the one to use for it. `lifetime` is in seconds; without
        one it is what the task's time-outs come to. `snapshots` names those that were handed over for this
        run; `keep_changes` keeps what is changed on disk, for `keep_as` to make one.
        """
        self._layers_dir = Path(layers_dir) if layers_dir else default_layers_dir()
        self._images = ImageStore(self._layers_dir, base_images)
        self._recipe = Recipe([Stage(Image(HOST_IMAGE))], Path())
        self._pids_limit = pids_limit
        self._overlay = overlay
        self._lifetime = lifetime
        self._snapshots = snapshots
        self._keep_changes = keep_changes
        self._changes: Path | None = None
        self._lowers: list[str] = []
        self._keeper: KeeperClient | None = None
        self._findings: HostFindings | None = None
        self._own_layers: list[Path] = []
        super().__init__(*args, **kwargs)
        self._number = next(_numbers)
        self._name = f"{self.session_id}-{self._number}"

    @staticmethod
    def type() -> str:
        return "local"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True)

    @classmethod
    def preflight(cls) -> None:
        require_local()

    def _validate_definition(self) -> None:
        if (self.environment_dir / "docker-compose.yaml").exists() or self.extra_docker_compose_paths:
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} has a docker-compose.yaml, which the local sandbox can't run: "
                f"{WAYS_OUT}."
            )
        self._recipe = self._read_recipe(force_build=False)
        for mount in self._mounts:
            if not _is_log_directory(mount["target"]) and mount["type"] != "bind":
                raise UnsupportedEnvironment(
                    f"The local sandbox has no mounts of type {mount['type']} "
                    f"(asked for at {mount['target']}): use type = bind."
                )

    def _read_recipe(self, *, force_build: bool) -> Recipe:
        """By the prebuilt image where the task names one, unless it is to be built and can be."""
        dockerfile = self.environment_dir / "Dockerfile"
        reference = self.task_env_config.docker_image
        if reference is not None and not (force_build and dockerfile.exists()):
            where = f"Task {self.environment_name}: docker_image = {reference}"
            image = self._images.find(reference, where)
            if image.reference == HOST_IMAGE and dockerfile.exists():
                return read_dockerfile(dockerfile, self._images.find)
            stage = Stage(image, workdir=image.workdir, user=image.user, env=dict(image.env))
            return Recipe([stage], self.environment_dir)
        if not dockerfile.exists():
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} has no {dockerfile}: add one that begins with "
                f"FROM {HOST_IMAGE}, or set docker_image."
            )
        return read_dockerfile(dockerfile, self._images.find)

    def _validate_gpu_support(self) -> None:
        if self._effective_gpus > 0:
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} asks for {self._effective_gpus} GPU(s), and the local sandbox "
                "hands out none: use environment_type=docker or environment_type=modal."
            )

    def _validate_tpu_support(self) -> None:
        if self.task_env_config.tpu is not None:
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} asks for a TPU, and the local sandbox hands out none: "
                "use environment_type=gke."
            )

    def _validate_windows_support(self) -> None:
        if self.task_env_config.os.value == "windows":
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} is for Windows, which the local sandbox is not: {WAYS_OUT}."
            )

    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        policy = network_policy or self._network_policy
        if policy.network_mode == NetworkMode.ALLOWLIST:
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} asks for network_mode = allowlist, which the local sandbox "
                "can't enforce: use no-network or public, or environment_type=docker, which has allowlists."
            )
        super().validate_network_policy_support(network_policy)

    @property
    def workdir(self) -> str:
        return self.task_env_config.workdir or self._recipe.final.workdir

    @property
    def lifetime(self) -> int:
        return self._lifetime or lifetime_seconds(task_config_beside(self.environment_dir))

    async def start(self, force_build: bool) -> None:
        self._keeper = await KeeperClient.of_this_loop()
        store = await self._open_store(self._keeper)
        if force_build:
            self._recipe = self._read_recipe(force_build=True)
        self._lowers = await self._stack(store, force_build)
        plan = self._boot_plan(store, self._lowers, self._recipe.final, network=not self._network_disabled)
        if self._keep_changes:
            self._changes = store.new_directory()
            self._own_layers.append(self._changes)
            plan["keep_in"] = store.place_for_changes(self._changes, self._lowers)
        plan["limits"] = self._limits()
        plan["lifetime"] = self.lifetime
        await self._boot(self._name, plan)
        await self._upload_environment_dir_after_start()

    async def _stack(self, store: LayerStore, force_build: bool) -> list[str]:
        """What the sandbox stands on: a snapshot where there is one, else what the recipe is built into."""
        handle = handle_for(self._snapshots, self.environment_dir)
        if handle is None or force_build or not store.overlay:
            return await self._builder(store).lowers(self._recipe.final, fresh=force_build)
        lowers: list[str] = json.loads((store.root / handle / "lowers.json").read_text())
        for lower in lowers:
            store.used(lower.partition("/")[0])
        return lowers

    async def keep_as(self, name: str) -> str:
        """Stop, and keep what was changed as a layer of that name, with what it stands on."""
        changes = self._changes
        if changes is None:
            raise ValueError("only a sandbox that was made with keep_changes can be kept")
        await self._running().ask("stop", name=self._name)
        store = await self._open_store(self._running())
        store.finish(changes)
        lowers = store.lowers([], name) + (self._lowers if store.overlay else [])
        (changes / "lowers.json").write_text(json.dumps(lowers))
        remove_tree(store.root / name)
        store.keep(changes, name)
        self._own_layers.remove(changes)
        self._changes = None
        return name

    def _builder(self, store: LayerStore) -> Builder:
        return Builder(
            keeper=self._running(),
            store=store,
            images=self._images,
            recipe=self._recipe,
            source=str(self.environment_dir / "Dockerfile"),
            name=self._name,
            one_id=self._has_one_id,
            boot_plan=lambda lowers, stage: self._boot_plan(store, lowers, stage, network=True),
            command_plan=self._step_plan,
            own_layers=self._own_layers,
        )

    async def stop(self, delete: bool) -> None:
        """End everything inside. What it held was in memory and is gone, whatever `delete` says."""
        if self._keeper is None:
            return
        try:
            await self._keeper.ask("stop", name=self._name)
        except SandboxLost:
            self.logger.debug("The keeper of %s was gone before it was stopped.", self._name)
        self._keeper = None
        while self._own_layers:
            remove_tree(self._own_layers.pop())

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        plan = self._command_plan(
            ["/bin/bash", "-c", command], cwd or self.workdir, self._merge_env(env) or {}
        )
        resolved = self._resolve_user(user)
        plan["user"] = self._recipe.final.user if resolved is None else resolved
        return await self._run(self._name, plan, timeout_sec)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._move("upload", str(Path(source_path).resolve()), target_path, directory=False)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._move("upload", str(Path(source_dir).resolve()), target_dir, directory=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._move("download", source_path, str(Path(target_path).absolute()), directory=False)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._move("download", source_dir, str(Path(target_dir).absolute()), directory=True)

    async def prepare_verification(self) -> list[str]:
        """Call between agent and verifier: ends the agent's terminal and makes /logs/verifier and /tests new.

        From here on commands and files go through a view of the sandbox whose two directories exist for the
        verifier only: what the agent put there, or what it left running puts there later, is not seen.
        Returns what the agent had left there, or elsewhere, for a verifier to trip over.
        """
        await self._running().ask("prepare_verification", name=self._name, workdir=self.workdir)
        signs: list[str] = (await self._running().ask("signs", name=self._name))["signs"]
        return signs

    async def end_verification(self) -> None:
        """Back to the agent's view, for a task that has another step."""
        await self._running().ask("end_verification", name=self._name)

    def _running(self) -> KeeperClient:
        if self._keeper is None:
            raise SandboxLost(f"The sandbox {self._name} is not running.")
        return self._keeper

    async def _move(self, operation: str, source: str, target: str, *, directory: bool) -> None:
        fields = {"source": source, "target": target, "directory": directory}
        await self._running().ask(operation, name=self._name, **fields)

    async def _run(self, name: str, plan: CommandPlan, timeout_sec: float | None) -> ExecResult:
        reply = await self._running().ask("exec", name=name, plan=plan, timeout=timeout_sec or None)
        stdout, stderr = (reply[stream].decode(errors="replace") for stream in ("stdout", "stderr"))
        callback = self._output_callback()
        if callback is not None:
            await callback(stdout, "stdout")
            await callback(stderr, "stderr")
        if reply["timed_out"]:
            message = f"Command timed out after {timeout_sec} seconds: {plan['argv'][-1]:.200}"
            raise CommandTimeout(message, stdout, stderr)
        return ExecResult(stdout=stdout, stderr=stderr, return_code=reply["code"])

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

    def _boot_plan(self, store: LayerStore, lowers: list[str], stage: Stage, *, network: bool) -> BootPlan:
        on_host = self._recipe.image(stage).reference == HOST_IMAGE
        binds: list[Bind] = [
            {"source": f"/{name}", "target": f"/{name}", "read_only": True}
            for name in (host_directories() if on_host else [])
        ]
        directories = [*stage.directories, self.workdir] if stage is self._recipe.final else stage.directories
        for mount in self._mounts:
            if _is_log_directory(mount["target"]):
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

    async def _boot(self, name: str, plan: BootPlan) -> None:
        await self._running().ask("boot", name=name, plan=plan)

    async def _open_store(self, keeper: KeeperClient) -> LayerStore:
        findings = self._findings = await keeper.findings()
        if findings["namespaces"] or findings["proc"]:
            raise SandboxUnavailable(explain(findings))
        overlay = self._overlay and not findings["overlay"]
        key = (self._layers_dir, findings["owner"], overlay)
        if key not in _stores:
            store = LayerStore(*key)
            store.open()
            _stores[key] = store
        if self._has_one_id:
            self._refuse_other_owners()
        return _stores[key]

    def _refuse_other_owners(self) -> None:
        """Where there is but one id to hand out, a step that needs another is refused by name."""
        for stage in self._recipe.stages:
            for step in stage.steps:
                other = step.user if isinstance(step, Run) else step.owner
                if other not in ("", "root"):
                    raise UnsupportedEnvironment(
                        f"{self.environment_dir / 'Dockerfile'}, line {step.line} needs the user {other}, "
                        f"and an ordinary user has but one id to hand out: {_SUBORDINATE_IDS}, or {WAYS_OUT}."
                    )
        if self._recipe.final.user != "root":
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} runs as the user {self._recipe.final.user}, and "
                f"an ordinary user has but one id to hand out: {_SUBORDINATE_IDS}, or {WAYS_OUT}."
            )


def _is_log_directory(target: str) -> bool:
    return target.startswith("/logs/")


def _network_files() -> dict[str, bytes]:
    """How the host finds names; a sandbox on its network needs the same."""
    files = {}
    for path in ("/etc/resolv.conf", "/etc/hosts"):
        if Path(path).is_file():
            files[path] = Path(path).read_bytes()
    files["/etc/hosts"] = files.get("/etc/hosts", b"") + f"127.0.0.1 {HOSTNAME}\n".encode()
    return files
