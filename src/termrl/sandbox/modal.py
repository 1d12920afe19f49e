"""`ModalSandbox`: a machine at Modal behind the small protocol, by way of Harbor's own Modal environment."""

import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harbor.models.trial.paths import TrialPaths

from termrl.sandbox.backends import load_environment_class
from termrl.sandbox.factory import honours
from termrl.sandbox.interface import HarborSandbox
from termrl.sandbox.labels import current_label
from termrl.sandbox.lifetime import task_config_beside


class ModalSandbox(HarborSandbox):
    @classmethod
    async def create(cls, environment_dir: Path, timeout: int, **options: Any) -> "ModalSandbox":
        """Builds `environment_dir` at Modal and starts it; `options` are those of Harbor's environment."""
        environment_class = load_environment_class("modal")
        config = task_config_beside(environment_dir)
        folder = TemporaryDirectory(prefix="termrl-")
        paths = TrialPaths(Path(folder.name))
        paths.mkdir()  # type: ignore[no-untyped-call]
        environment = environment_class(
            environment_dir=environment_dir,
            environment_name=environment_dir.parent.name,
            session_id=f"{environment_dir.parent.name}-{uuid.uuid4().hex[:8]}",
            trial_paths=paths,
            task_env_config=config.environment,
            network_policy=config.environment.resolve_baseline(),
            **{"sandbox_timeout_secs": timeout, "labels": current_label().as_labels(), **options},
        )
        await environment.start(force_build=False)
        return cls(environment, ended=folder.cleanup)


@honours(
    "dockerfile", "docker_image", "docker_compose", "cpus", "memory_mb", "gpus", "no-network", "allowlist"
)
async def modal_sandbox_factory(environment_dir: Path, timeout: int) -> ModalSandbox:
    """A `SandboxFactory` at Modal."""
    return await ModalSandbox.create(environment_dir, timeout)
