"""Harbor's cloud environments, started from a snapshot where the run has one for the task."""

from pathlib import Path
from typing import Any

from harbor.environments.daytona import DaytonaEnvironment
from harbor.environments.modal import ModalEnvironment

from termrl.sandbox.snapshots import handle_for


class FrozenDaytona(DaytonaEnvironment):
    def __init__(
        self, environment_dir: Path, *args: Any, snapshots: str | None = None, **kwargs: Any
    ) -> None:
        handle = handle_for(snapshots, environment_dir)
        if handle is not None:
            kwargs["snapshot_template_name"] = handle
        super().__init__(environment_dir, *args, **kwargs)


class FrozenModal(ModalEnvironment):
    def __init__(
        self, environment_dir: Path, *args: Any, snapshots: str | None = None, **kwargs: Any
    ) -> None:
        self._frozen_image = handle_for(snapshots, environment_dir)
        super().__init__(environment_dir, *args, **kwargs)

    async def _create_sandbox(self, **options: Any) -> Any:
        if self._frozen_image is not None:
            from modal import Image

            # What Harbor put here is only a plan to build; nothing was built yet.
            self._image = Image.from_id(self._frozen_image)
        return await super()._create_sandbox(**options)
