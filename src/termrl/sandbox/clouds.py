"""Harbor's cloud environments, started from a snapshot where the run has one for the task."""

import importlib
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
        super().__init__(environment_dir, *args, **kwargs)
        handle = handle_for(snapshots, environment_dir)
        if handle is not None:
            create = self._create_sandbox

            async def create_from_snapshot(**options: Any) -> Any:
                # What Harbor put here is only a plan to build; nothing was built yet.
                self._image = importlib.import_module("modal").Image.from_id(handle)
                return await create(**options)

            vars(self)["_create_sandbox"] = create_from_snapshot
