"""`ModalSandbox`: a machine at Modal behind the small protocol, by way of Harbor's own Modal environment."""

from pathlib import Path
from typing import Any

from termrl.sandbox.backends import load_environment_class
from termrl.sandbox.factory import environment_arguments, honours
from termrl.sandbox.interface import HarborSandbox
from termrl.sandbox.labels import current_label


class ModalSandbox(HarborSandbox):
    @classmethod
    async def create(cls, environment_dir: Path, timeout: int, **options: Any) -> "ModalSandbox":
        """Builds `environment_dir` at Modal and starts it; `options` are those of Harbor's environment."""
        environment_class = load_environment_class("modal")
        arguments, folder = environment_arguments(environment_dir)
        own = {"sandbox_timeout_secs": timeout, "labels": current_label().as_labels(), **options}
        environment = environment_class(**arguments, **own)
        await environment.start(force_build=False)
        return cls(environment, ended=folder.cleanup)


@honours(
    "dockerfile", "docker_image", "docker_compose", "cpus", "memory_mb", "gpus", "no-network", "allowlist"
)
async def modal_sandbox_factory(environment_dir: Path, timeout: int) -> ModalSandbox:
    """A `SandboxFactory` at Modal."""
    return await ModalSandbox.create(environment_dir, timeout)
