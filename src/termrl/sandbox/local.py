"""`LocalEnvironment`: a Harbor environment made of Linux namespaces, with no container engine.

Use it as `EnvironmentConfig(import_path="termrl.sandbox.local:LocalEnvironment")`. Inside, every absolute
path is the sandbox's own and the user is root; the host's /usr is there read-only. Log directories are not
mounted from the host but downloaded, so nothing that runs inside can write to a host directory.
"""

import asyncio
import itertools
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy

from termrl.sandbox.base import HOSTNAME, PRIVATE_PROGRAMS, host_directories
from termrl.sandbox.client import KeeperClient
from termrl.sandbox.dockerfile import HOST_IMAGE, WAYS_OUT, Copy, Recipe, read_dockerfile
from termrl.sandbox.errors import CommandTimeout, SandboxLost, SandboxUnavailable, UnsupportedEnvironment
from termrl.sandbox.keeper.messages import Bind, BootPlan, CommandPlan
from termrl.sandbox.layers import LayerStore, default_layers_dir, remove_tree
from termrl.sandbox.preflight import explain, require_local
from termrl.sandbox.tmux import find_tmux

_ENVIRONMENT = {
    "HOME": "/root",
    "HOSTNAME": HOSTNAME,
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "TMUX_TMPDIR": "/run/tmux",
}
_DEFAULT_STORAGE_MB = 2048
_DEFAULT_PIDS = 1024
_numbers = itertools.count(1)
_stores: dict[tuple[Path, int, bool], LayerStore] = {}


class LocalEnvironment(BaseEnvironment):
    def __init__(
        self,
        *args: Any,
        layers_dir: str | None = None,
        pids_limit: int = _DEFAULT_PIDS,
        overlay: bool = True,
        **kwargs: Any,
    ) -> None:
        """`overlay=False` copies roots into memory, as is done where the kernel refuses overlays."""
        self._recipe = Recipe()
        self._layers_dir = Path(layers_dir) if layers_dir else default_layers_dir()
        self._pids_limit = pids_limit
        self._overlay = overlay
        self._keeper: KeeperClient | None = None
        self._own_layer: Path | None = None
        super().__init__(*args, **kwargs)
        self._name = f"{self.session_id}-{next(_numbers)}"

    @staticmethod
    def type() -> str:
        return "local"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities()

    @classmethod
    def preflight(cls) -> None:
        require_local()

    def _validate_definition(self) -> None:
        image = self.task_env_config.docker_image
        if image not in (None, HOST_IMAGE):
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} asks for docker_image = {image}, which needs a container "
                f"engine, which the local sandbox is not: {WAYS_OUT}."
            )
        if (self.environment_dir / "docker-compose.yaml").exists():
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} has a docker-compose.yaml, which the local sandbox can't run: "
                f"{WAYS_OUT}."
            )
        dockerfile = self.environment_dir / "Dockerfile"
        if dockerfile.exists():
            self._recipe = read_dockerfile(dockerfile)
        elif image is None:
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} has no {dockerfile}: add one that begins with "
                f"FROM {HOST_IMAGE}."
            )
        for mount in self._mounts:
            if not _is_log_directory(mount["target"]) and mount["type"] != "bind":
                raise UnsupportedEnvironment(
                    f"The local sandbox has no mounts of type {mount['type']} "
                    f"(asked for at {mount['target']}): use type = bind."
                )

    def _validate_gpu_support(self) -> None:
        if self._effective_gpus > 0:
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} asks for {self._effective_gpus} GPU(s), and the local sandbox "
                "hands out none: use an environment type that does."
            )

    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        policy = network_policy or self._network_policy
        if policy.network_mode == NetworkMode.ALLOWLIST:
            raise UnsupportedEnvironment(
                f"Task {self.environment_name} asks for network_mode = allowlist, which the local sandbox "
                "can't enforce: use no-network or public, or an environment type that has allowlists."
            )
        super().validate_network_policy_support(network_policy)

    @property
    def workdir(self) -> str:
        return self.task_env_config.workdir or self._recipe.workdir

    async def start(self, force_build: bool) -> None:
        self._keeper = await KeeperClient.of_this_loop()
        store = await self._open_store(self._keeper)
        base = store.base(find_tmux())
        layer = await self._build(store, base, force_build) if self._recipe.steps else None
        plan = self._boot_plan(store, store.lowers(base, layer), network=not self._network_disabled)
        await self._boot(self._name, plan)
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        """End everything inside. What it held was in memory and is gone, whatever `delete` says."""
        if self._keeper is None:
            return
        try:
            await self._keeper.ask("stop", name=self._name)
        except SandboxLost:
            self.logger.debug("The keeper of %s was gone before it was stopped.", self._name)
        self._keeper = None
        if self._own_layer is not None:
            remove_tree(self._own_layer)

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
        plan["user"] = "root" if resolved is None else resolved
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
            raise CommandTimeout(f"Command timed out after {timeout_sec} seconds: {plan['argv'][-1]:.200}")
        return ExecResult(stdout=stdout, stderr=stderr, return_code=reply["code"])

    def _command_plan(self, argv: list[str], cwd: str, env: dict[str, str]) -> CommandPlan:
        whole = {**_ENVIRONMENT, **self._recipe.env, **env}
        whole["PATH"] += f":{PRIVATE_PROGRAMS}"
        return {"argv": argv, "cwd": cwd, "env": whole, "user": "root", "pids_limit": self._pids_limit}

    def _boot_plan(self, store: LayerStore, lowers: list[str], *, network: bool) -> BootPlan:
        binds: list[Bind] = [
            {"source": f"/{name}", "target": f"/{name}", "read_only": True} for name in host_directories()
        ]
        directories = [*self._recipe.directories, self.workdir]
        for mount in self._mounts:
            if _is_log_directory(mount["target"]):
                directories.append(mount["target"])
                continue
            read_only = bool(mount.get("read_only"))
            binds.append({"source": mount["source"], "target": mount["target"], "read_only": read_only})
        return {
            "layers_dir": str(store.root),
            "lowers": lowers,
            "keep_in": None,
            "overlay": store.overlay,
            "binds": binds,
            "directories": directories,
            "files": _network_files() if network else {},
            "hostname": HOSTNAME,
            "network": network,
            "storage_mb": self._effective_storage_mb or _DEFAULT_STORAGE_MB,
            "pids_limit": self._pids_limit,
        }

    async def _boot(self, name: str, plan: BootPlan) -> None:
        await self._running().ask("boot", name=name, plan=plan)

    async def _open_store(self, keeper: KeeperClient) -> LayerStore:
        findings = await keeper.findings()
        if findings["namespaces"] or findings["proc"]:
            raise SandboxUnavailable(explain(findings))
        overlay = self._overlay and not findings["overlay"]
        key = (self._layers_dir, findings["owner"], overlay)
        if key not in _stores:
            store = LayerStore(*key)
            store.open()
            _stores[key] = store
        return _stores[key]

    async def _build(self, store: LayerStore, base: str, force: bool) -> str:
        """The layer that the recipe's steps make, from the cache if it is there."""
        layer = self._recipe.key(base, str(store.owner), str(store.overlay))
        if force:
            # Built anew for this sandbox alone: others may be standing on the one in the cache.
            self._own_layer = store.new_directory()
            await self._run_steps(store, base, self._own_layer)
            return self._own_layer.name
        async with self._running().builds.setdefault(f"{store.root}/{layer}", asyncio.Lock()):
            if not store.has(layer):
                with store.building(layer) as directory:
                    await self._run_steps(store, base, directory)
        return layer

    async def _run_steps(self, store: LayerStore, base: str, directory: Path) -> None:
        builder = f"{self._name}-build"
        plan = self._boot_plan(store, [base], network=True)
        plan["keep_in"] = store.place_for_changes(directory, base)
        keeper = self._running()
        await self._boot(builder, plan)
        try:
            for step in self._recipe.steps:
                if isinstance(step, Copy):
                    fields = {"source": str(step.source), "target": step.target, "directory": step.directory}
                    await keeper.ask("upload", name=builder, **fields)
                    continue
                command = self._command_plan(list(step.argv), step.workdir, dict(step.env))
                result = await self._run(builder, command, None)
                if result.return_code != 0:
                    output = f"{result.stdout}{result.stderr}".strip()[-500:]
                    raise SandboxBuildFailedError(
                        f"{self.environment_dir / 'Dockerfile'}, line {step.line}: RUN ended with "
                        f"{result.return_code}: {output}"
                    )
        finally:
            await keeper.ask("stop", name=builder)
        store.finish(directory)


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
