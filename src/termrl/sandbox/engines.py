"""Harbor's Docker and Podman environments, with the run's label on all they make and an end of their own.

Containers, networks, volumes and images are labelled; a container ends by itself when its lifetime is over.
A task that has no network in any phase gets none at all (`network_mode: none`), where Harbor would build a
side-car that needs one. Everything else is Harbor's.
"""

import asyncio
import json
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from harbor.constants import MAIN_SERVICE_NAME
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.docker.docker import DockerEnvironment
from harbor.environments.podman import PodmanEnvironment
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox.labels import EXPIRES, current_label
from termrl.sandbox.lifetime import lifetime_seconds, task_config_beside
from termrl.sandbox.snapshots import handle_for


class LabelledDocker(DockerEnvironment):
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
        await super().start(force_build)

    async def exhausted(self) -> str | None:
        """How the agent's own use ended the container, if it did: the kernel took it for its memory."""
        try:
            listed = await self._run_docker_compose_command(["ps", "--all", "--quiet", MAIN_SERVICE_NAME])
        except RuntimeError:
            return None
        name = (listed.stdout or "").strip()
        if not name:
            return None
        inspect = type(self).runtime().engine_cmd("inspect", "--format", "{{.State.OOMKilled}}", name)
        process = await asyncio.create_subprocess_exec(*inspect, stdout=PIPE, stderr=DEVNULL)
        said, _ = await process.communicate()
        return "the container ran out of memory and was killed" if said.strip() == b"true" else None

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
                "command": ["sh", "-c", f"sleep {lifetime}"],
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


def _read_compose(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text())
    return document if isinstance(document, dict) else {}
