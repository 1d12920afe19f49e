"""How each backend makes, finds and removes a snapshot of a sandbox that is ready for its agent.

local: an overlay layer; docker and podman: an image; modal and daytona: their own file system snapshots.
A snapshotter says what the image of a task is by its content, so that a moved tag is a miss.
"""

import asyncio
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from harbor.environments.base import BaseEnvironment
from harbor.models.task.config import TaskConfig

from termrl.sandbox.backends import LOCAL, Backend
from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.layers import LayerStore, default_layers_dir, open_default_store, remove_tree
from termrl.sandbox.references import images_of, images_of_services, pin
from termrl.sandbox.registry import Registries

Prepare = Callable[[BaseEnvironment], Awaitable[None]]
"""Installs what the agent needs in a started sandbox."""
TAG = "termrl-snapshot"


class Snapshotter(ABC):
    """One backend's way. `backend` is the chosen one, with what it is told."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @abstractmethod
    async def image(self, environment_dir: Path, config: TaskConfig) -> str:
        """What names the content of the image or images that the environment is built from."""

    @abstractmethod
    async def take(self, environment: BaseEnvironment, key: str) -> tuple[str, int | None]:
        """A snapshot of the started and prepared sandbox: its handle and, where known, its size."""

    @abstractmethod
    async def exists(self, handle: str) -> bool: ...

    @abstractmethod
    async def destroy(self, handle: str) -> None:
        """Remove it; nothing happens where it is gone already."""

    async def handles(self) -> list[str]:
        """Every snapshot of ours that this host's backend has, recorded or not; none where it can't tell."""
        return []

    def options(self, key: str) -> dict[str, Any]:
        """What the environment that is going to be snapshotted is told besides."""
        return {}

    async def source(self, environment_dir: Path, config: TaskConfig, folder: Path) -> Path:
        """What to build the snapshot from: the environment itself, or a copy in `folder` that can't come to
        anything but what `image` named; `config` is changed to fit."""
        return environment_dir


class LocalSnapshots(Snapshotter):
    async def handles(self) -> list[str]:
        return sorted(path.name for path in self._layers_dir.glob("snapshot-*"))

    async def image(self, environment_dir: Path, config: TaskConfig) -> str:
        from termrl.sandbox.images import ImageStore
        from termrl.sandbox.reading import read_dockerfile

        images = ImageStore(self._layers_dir, self.backend.kwargs.get("base_images"))
        owner = str(self._store().owner)
        if config.environment.docker_image:
            return images.find(config.environment.docker_image, str(environment_dir)).key + owner
        recipe = read_dockerfile(environment_dir / "Dockerfile", images.find)
        return recipe.key(recipe.final, owner, *(recipe.image(stage).key for stage in recipe.stages))

    async def take(self, environment: BaseEnvironment, key: str) -> tuple[str, int | None]:
        from termrl.sandbox.local import LocalEnvironment

        handle = await cast(LocalEnvironment, environment).keep_as(f"snapshot-{key}")
        return handle, _size(self._layers_dir / handle)

    async def exists(self, handle: str) -> bool:
        described = self._layers_dir / handle / "lowers.json"
        if not described.is_file():
            return False
        lowers: list[str] = json.loads(described.read_text())
        return all((self._layers_dir / lower).is_dir() for lower in lowers)

    async def destroy(self, handle: str) -> None:
        remove_tree(self._layers_dir / handle)

    def options(self, key: str) -> dict[str, Any]:
        return {"keep_changes": True}

    @property
    def _layers_dir(self) -> Path:
        chosen = self.backend.kwargs.get("layers_dir")
        return Path(chosen) if chosen else default_layers_dir()

    def _store(self) -> LayerStore:
        opened = open_default_store()
        return LayerStore(self._layers_dir, opened.owner, opened.overlay)


class EngineSnapshots(Snapshotter):
    """Docker's and Podman's: an image, committed from the main container."""

    async def handles(self) -> list[str]:
        listed = await self._ask("images", "--format", "{{.Repository}}:{{.Tag}}", TAG)
        return sorted((listed or "").split())

    async def image(self, environment_dir: Path, config: TaskConfig) -> str:
        digests = []
        for reference in images_of(environment_dir, config):
            found = await self._ask("image", "inspect", "--format", "{{.Id}}", reference)
            if found is None:
                await self._ask("pull", reference)
                found = await self._ask("image", "inspect", "--format", "{{.Id}}", reference)
            digests.append(found or reference)
        return " ".join(digests)

    async def take(self, environment: BaseEnvironment, key: str) -> tuple[str, int | None]:
        handle = f"{TAG}:{key}"
        project = environment.session_id.lower()
        filters = [f"label=com.docker.compose.project={project}", "label=com.docker.compose.service=main"]
        container = await self._ask("ps", "-q", *(word for each in filters for word in ("--filter", each)))
        if not container:
            raise UnsupportedEnvironment(f"The container of {environment.environment_name} was not found.")
        # Without a project of its own the image would be taken for the task's, and go down with it.
        change = ["--change", f"LABEL {TAG}={key} com.docker.compose.project={TAG}"]
        if await self._ask("commit", *change, container.split()[0], handle) is None:
            raise UnsupportedEnvironment(
                f"The container of {environment.environment_name} can't be committed."
            )
        size = await self._ask("image", "inspect", "--format", "{{.Size}}", handle)
        return handle, int(size) if size and size.isdecimal() else None

    async def exists(self, handle: str) -> bool:
        return await self._ask("image", "inspect", handle) is not None

    async def destroy(self, handle: str) -> None:
        await self._ask("image", "rm", "-f", handle)

    async def _ask(self, *words: str) -> str | None:
        process = await asyncio.create_subprocess_exec(
            self.backend.environment_type,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
        return output.decode(errors="replace").strip() if process.returncode == 0 else None


class CloudSnapshots(Snapshotter):
    """Of machines that pull images themselves: a registry says what a name stands for, and that is built."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._registries = Registries()

    async def image(self, environment_dir: Path, config: TaskConfig) -> str:
        return " ".join((await self._digests(environment_dir, config)).values())

    async def source(self, environment_dir: Path, config: TaskConfig, folder: Path) -> Path:
        # Clouds keep what they built by its Dockerfile's words: a tag that moved would give the old content.
        return pin(environment_dir, config, await self._digests(environment_dir, config), folder)

    async def _digests(self, environment_dir: Path, config: TaskConfig) -> dict[str, str]:
        references = [*images_of(environment_dir, config), *images_of_services(environment_dir)]
        return {reference: await self._registries.digest(reference) for reference in references}


class DaytonaSnapshots(CloudSnapshots):
    """Daytona captures a sandbox's file system under a name."""

    async def take(self, environment: BaseEnvironment, key: str) -> tuple[str, int | None]:
        handle = f"{TAG}-{key}"
        await cast(Any, environment)._sandbox.create_snapshot(handle, timeout=600)
        return handle, None

    async def exists(self, handle: str) -> bool:
        daytona = importlib.import_module("daytona")
        async with daytona.AsyncDaytona() as client:
            try:
                await client.snapshot.get(handle)
            except daytona.DaytonaNotFoundError:
                return False
        return True

    async def destroy(self, handle: str) -> None:
        daytona = importlib.import_module("daytona")
        async with daytona.AsyncDaytona() as client:
            try:
                await client.snapshot.delete(await client.snapshot.get(handle))
            except daytona.DaytonaNotFoundError:
                return


class ModalSnapshots(CloudSnapshots):
    """Modal keeps a sandbox's file system as an image, known by its id."""

    async def take(self, environment: BaseEnvironment, key: str) -> tuple[str, int | None]:
        image = await cast(Any, environment)._sandbox.snapshot_filesystem.aio()
        return str(image.object_id), None

    async def exists(self, handle: str) -> bool:
        modal = importlib.import_module("modal")
        app = await modal.App.lookup.aio(self.backend.kwargs.get("app_name", TAG), create_if_missing=True)
        try:
            await modal.Image.from_id(handle).build.aio(
                app
            )  # which builds nothing: it asks for what is there
        except modal.exception.NotFoundError:
            return False
        return True

    async def destroy(self, handle: str) -> None:
        """Modal removes images that nothing refers to by itself; the record is all there is to remove."""


SNAPSHOTTERS: dict[str, type[Snapshotter]] = {
    LOCAL: LocalSnapshots,
    "docker": EngineSnapshots,
    "podman": EngineSnapshots,
    "daytona": DaytonaSnapshots,
    "modal": ModalSnapshots,
}


def snapshotter_for(backend: Backend) -> Snapshotter:
    """The way of this backend; refused by name where it has none."""
    if backend.factory is not None or backend.environment_type not in SNAPSHOTTERS:
        raise UnsupportedEnvironment(
            f"environment_type={backend.name} has no snapshots: {', '.join(SNAPSHOTTERS)} have."
        )
    return SNAPSHOTTERS[backend.environment_type](backend)


def _size(path: Path) -> int:
    return sum(file.lstat().st_blocks * 512 for file in path.rglob("*"))
