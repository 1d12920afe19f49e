"""What a task asks of the local sandbox: read from its files, and refused by name where it can't be had."""

from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.models.task.config import NetworkMode, NetworkPolicy

from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.images import ImageStore
from termrl.sandbox.preflight import require_local
from termrl.sandbox.reading import read_dockerfile
from termrl.sandbox.recipe import HOST_IMAGE, WAYS_OUT, Image, Recipe, Run, Stage

_SUBORDINATE_IDS = "have an administrator give you subordinate ids (`usermod --add-subuids`), run as root"


class LocalDefinition(BaseEnvironment):
    def __init__(self, images: ImageStore, *args: Any, **kwargs: Any) -> None:
        self._images = images
        self._recipe = Recipe([Stage(Image(HOST_IMAGE))], Path())
        super().__init__(*args, **kwargs)

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
            if not is_log_directory(mount["target"]) and mount["type"] != "bind":
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


def is_log_directory(target: str) -> bool:
    return target.startswith("/logs/")
