"""`LocalEnvironment`: a Harbor environment made of Linux namespaces, with no container engine.

Use it as `EnvironmentConfig(import_path="termrl.sandbox.local:LocalEnvironment")`. Inside, every absolute
path is the sandbox's own and the user is root; on `FROM termrl/host` the host's /usr is there read-only. Log
directories are not mounted from the host but downloaded, so nothing inside can write to a host directory.
"""

import itertools
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harbor.environments.base import ExecResult

from termrl.sandbox.build import Builder
from termrl.sandbox.client import KeeperClient
from termrl.sandbox.door import open_door
from termrl.sandbox.errors import CommandTimeout, SandboxLost, SandboxUnavailable
from termrl.sandbox.images import ImageStore
from termrl.sandbox.keeper.messages import BootPlan, CommandPlan
from termrl.sandbox.layers import LayerStore, default_layers_dir, remove_tree
from termrl.sandbox.lifetime import lifetime_seconds, task_config_beside
from termrl.sandbox.plans import LocalPlans
from termrl.sandbox.preflight import explain
from termrl.sandbox.snapshots import handle_for

_DEFAULT_PIDS = 1024
_numbers = itertools.count(1)
_stores: dict[tuple[Path, int, bool], LayerStore] = {}


class LocalEnvironment(LocalPlans):
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
        self._overlay = overlay
        self._lifetime = lifetime
        self._snapshots = snapshots
        self._keep_changes = keep_changes
        self._changes: Path | None = None
        self._lowers: list[str] = []
        self._keeper: KeeperClient | None = None
        self._own_layers: list[Path] = []
        images = ImageStore(self._layers_dir, base_images)
        super().__init__(images, *args, number=next(_numbers), pids_limit=pids_limit, **kwargs)

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

    async def listen_inside(self, port: int) -> socket.socket | None:
        """A socket that listens on a port of the sandbox's own loopback, to be answered from out here.

        None where the sandbox is on the host's network, and so reaches what listens here anyway.
        """
        if not self._network_disabled:
            return None
        return await open_door(self._running(), self._name, port)

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
