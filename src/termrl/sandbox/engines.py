"""Harbor's Docker and Podman environments, with the run's label on all they make and an end of their own.

Containers, networks, volumes and images are labelled; a container ends by itself when its lifetime is over.
A task that has no network in any phase gets none at all (`network_mode: none`), where Harbor would build a
side-car that needs one. Commands go to the engine itself (`direct`); what Harbor would ask or build anew for
every container is asked and built once a process. Everything else is Harbor's.
"""

import asyncio
import json
import os
import shlex
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml  # type: ignore[import-untyped]
from harbor.constants import MAIN_SERVICE_NAME
from harbor.environments.base import ExecResult, OutputCallback
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.docker.docker import (
    DockerEnvironment,
    _sanitize_docker_compose_project_name,
)
from harbor.environments.podman import PodmanEnvironment
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox.direct import container_of, containers, for_engine, says_gone, service_of
from termrl.sandbox.errors import SandboxLost
from termrl.sandbox.labels import EXPIRES, current_label
from termrl.sandbox.lifetime import lifetime_seconds, task_config_beside
from termrl.sandbox.snapshots import handle_for


class LabelledDocker(DockerEnvironment):
    _engines: ClassVar[dict[tuple[str, ...], "_Engine"]] = {}

    def __init__(
        self,
        environment_dir: Path,
        environment_name: str,
        session_id: str,
        trial_paths: TrialPaths,
        task_env_config: EnvironmentConfig,
        *args: Any,
        lifetime: int | None = None,
        snapshots: str | None = None,
        **kwargs: Any,
    ) -> None:
        """`snapshots` names those that were handed over for this run."""
        self._lifetime = lifetime
        self._force_build = False
        self._containers: dict[str, str] = {}
        self._overlay: tempfile.TemporaryDirectory[str] | None = None
        image = handle_for(snapshots, environment_dir)
        if image is not None:
            task_env_config = task_env_config.model_copy(update={"docker_image": image})
        super().__init__(
            environment_dir, environment_name, session_id, trial_paths, task_env_config, *args, **kwargs
        )

    @staticmethod
    def _requires_egress_control(
        *, startup_network_policy: NetworkPolicy, phase_network_policies: Sequence[NetworkPolicy]
    ) -> bool:
        policies = (startup_network_policy, *phase_network_policies)
        modes = {policy.network_mode for policy in policies}
        return modes not in ({NetworkMode.PUBLIC}, {NetworkMode.NO_NETWORK})

    @property
    def _is_cut_off(self) -> bool:
        return self._network_disabled and not self._enable_egress_control

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        capabilities = super().capabilities
        # Read while the base class is being made, before there is a policy to look at.
        if getattr(self, "_network_policy", None) is not None and self._is_cut_off:
            return capabilities.model_copy(update={"disable_internet": True})
        return capabilities

    @property
    def _docker_compose_paths(self) -> list[Path]:
        paths: list[Path] = super()._docker_compose_paths
        return paths if self._overlay is None else [*paths, Path(self._overlay.name, "termrl.json")]

    async def start(self, force_build: bool) -> None:
        self._overlay = tempfile.TemporaryDirectory(prefix="termrl-compose-")
        Path(self._overlay.name, "termrl.json").write_text(json.dumps(self._overlay_document()))
        self._force_build = force_build
        await super().start(force_build)

    @classmethod
    def _engine(cls) -> "_Engine":
        """What is known of the engine that this process talks to just now."""
        name = (*cls.runtime().engine, *(os.environ.get(each, "") for each in _WHICH_ENGINE))
        return cls._engines.setdefault(name, _Engine())

    @classmethod
    def _detect_daemon_os(cls) -> str | None:
        engine = cls._engine()
        engine.os = engine.os or super()._detect_daemon_os()
        return engine.os

    async def _is_rootless_docker(self) -> bool:
        engine = self._engine()
        if engine.rootless is None:
            engine.rootless = await super()._is_rootless_docker()
        return engine.rootless

    async def _validate_image_os(self, image_name: str) -> None:
        fitting = self._engine().fitting_images
        if image_name not in fitting:
            await super()._validate_image_os(image_name)
            fitting.add(image_name)

    async def prepare_logs_for_host(self) -> None:
        targets = " ".join(shlex.quote(each) for each in self._mount_targets(writable_only=True))
        owner = "0:0" if await self._is_rootless_docker() else f"{os.getuid()}:{os.getgid()}"
        try:
            await self.exec(f"chown -R {owner} {targets}", user="root")
        except (RuntimeError, OSError) as error:
            self.logger.warning(f"Failed to chown logs directory: {error}")

    async def _run_docker_compose_command(
        self,
        command: list[str],
        check: bool = True,
        timeout_sec: int | None = None,
        stdin_data: bytes | None = None,
        on_output: OutputCallback | None = None,
    ) -> ExecResult:
        if command == ["build"]:
            return await self._build()
        if command == _CLEAR_STALE and not await self._found(all=True):
            return _NOTHING_TO_DO
        service = service_of(command)
        container = None if service is None else await self._container(service)
        if container is None:
            result = await super()._run_docker_compose_command(
                command, check, timeout_sec, stdin_data, on_output
            )
            if service is not None and result.return_code != 0 and says_gone(result.stdout or ""):
                raise self._lost(result)
            return result
        words = for_engine(command, container, piped=stdin_data is not None)
        process = await asyncio.create_subprocess_exec(
            *type(self).runtime().engine_cmd(*words),
            stdin=DEVNULL if stdin_data is None else PIPE,
            stdout=PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        result = await (
            self._collect_buffered_output(process, timeout_sec=timeout_sec, stdin_data=stdin_data)
            if on_output is None
            else self._collect_streamed_output(
                process, timeout_sec=timeout_sec, stdin_data=stdin_data, on_output=on_output
            )
        )
        if result.return_code == 0:
            return result
        if says_gone(result.stdout or "") and await self._container(service or "", anew=True) is None:
            raise self._lost(result)
        if check:
            raise RuntimeError(f"{' '.join(words)} failed with {result.return_code}: {result.stdout}")
        return result

    def _lost(self, result: ExecResult) -> SandboxLost:
        return SandboxLost(f"The container of {self.session_id} is gone: {(result.stdout or '').strip()}")

    async def _build(self) -> ExecResult:
        """Harbor names an image by its content; what one process has built need not be built again."""
        whole = not self._user_compose_paths() and not self._force_build
        built = self._engine().built_images
        if whole and self._main_image_name in built:
            return _NOTHING_TO_DO
        result = await super()._run_docker_compose_command(["build"])
        if whole:
            built.add(self._main_image_name)
        return result

    @property
    def _project(self) -> str:
        return _sanitize_docker_compose_project_name(self.session_id)

    async def _found(self, *, all: bool) -> list[str]:
        return await containers(type(self).runtime(), self._project, all=all)

    async def _container(self, service: str, *, anew: bool = False) -> str | None:
        if not anew and service in self._containers:
            return self._containers[service]
        found = await container_of(type(self).runtime(), self._project, service)
        if found is not None:
            self._containers[service] = found
        return found

    async def exhausted(self) -> str | None:
        """How the agent's own use ended the container, if it did: the kernel takes what needs too much."""
        name = self._containers.get(MAIN_SERVICE_NAME)
        if name is None:
            return None
        if await self._ask("inspect", "--format", "{{.State.OOMKilled}}", name) == "true":
            return "the container ran out of memory and was killed"
        # It may live on and have no room for a verifier: what is killed for that is killed now.
        lately = (
            "--since",
            _LATELY,
            "--until",
            "0s",
            "--filter",
            "event=oom",
            "--filter",
            f"container={name}",
        )
        # Engines remember few events, and miss some; but a container that is full stays full.
        if await self._ask("events", *lately) or await self._memory_share(name) > _FULL:
            return "the container is out of memory, and what is started in it is killed"
        return None

    async def _memory_share(self, name: str) -> float:
        """How much of its memory a container has in use, in percent."""
        said = await self._ask("stats", "--no-stream", "--format", "{{.MemPerc}}", name)
        try:
            return float(said.removesuffix("%"))
        except ValueError:
            return 0.0  # It is gone, or the engine does not count.

    async def _ask(self, *words: str) -> str:
        """What the engine answers; nothing where it refuses."""
        command = type(self).runtime().engine_cmd(*words)
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
        said, _ = await process.communicate()
        return said.decode().strip()

    async def stop(self, delete: bool) -> None:
        try:
            await super().stop(delete)
        finally:
            if self._overlay is not None:
                self._overlay.cleanup()
                self._overlay = None

    def _overlay_document(self) -> dict[str, Any]:
        lifetime = self._lifetime or lifetime_seconds(task_config_beside(self.environment_dir))
        labels = {**current_label().as_labels(), EXPIRES: str(int(time.time()) + lifetime)}
        written = [_read_compose(path) for path in self._user_compose_paths()]
        names = {MAIN_SERVICE_NAME, *(name for each in written for name in each.get("services") or {})}
        if self._enable_egress_control:
            names.add(self._EGRESS_CONTROL_SERVICE_NAME)
        # A shell that waits as a container's first process ignores being asked to stop: don't wait for it.
        services: dict[str, dict[str, Any]] = {
            name: {"labels": labels, "stop_grace_period": "0s"} for name in sorted(names)
        }
        networks = {name for each in written for name in each.get("networks") or {}} | {"default"}
        document: dict[str, Any] = {
            "services": services,
            "networks": {name: {"labels": labels} for name in sorted(networks)},
            "volumes": {
                name: {"labels": labels} for each in written for name in sorted(each.get("volumes") or {})
            },
        }
        if not any("command" in (each.get("services") or {}).get(MAIN_SERVICE_NAME, {}) for each in written):
            # Nothing listens to a first process that sleeps: asking it to end would only cost ten seconds.
            services[MAIN_SERVICE_NAME] |= {
                "command": ["sh", "-c", _SLEEP_ON.format(lifetime)],
                "stop_signal": "SIGKILL",
            }
        if self._is_cut_off and not written:
            services[MAIN_SERVICE_NAME]["network_mode"] = "none"
            del document["networks"]
        elif self._is_cut_off:
            # Services of one task still have to find each other.
            document["networks"]["default"]["internal"] = True
        return document


class LabelledPodman(LabelledDocker, PodmanEnvironment):
    """The same on Podman: what differs between the two engines is Harbor's `runtime`."""


@dataclass(slots=True)
class _Engine:
    """What was asked of an engine and built in it, by this process."""

    os: str | None = None
    rootless: bool | None = None
    built_images: set[str] = field(default_factory=set)
    fitting_images: set[str] = field(default_factory=set)


_WHICH_ENGINE = ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST")
# The first process can't be killed from inside, but the sleep that it waits for can, by a mere `pkill sleep`.
_SLEEP_ON = (
    "end=$(($(date +%s) + {})); while left=$((end - $(date +%s))) && [ $left -gt 0 ]; do sleep $left; done"
).replace("$", "$$")  # which compose would fill in
_LATELY = "60s"
_FULL = 90.0
_CLEAR_STALE = ["down", "--remove-orphans"]
_NOTHING_TO_DO = ExecResult(return_code=0)


def _read_compose(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text())
    return document if isinstance(document, dict) else {}
