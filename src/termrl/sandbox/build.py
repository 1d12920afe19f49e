"""Builds what a recipe says into layers of the cache, each stage once, in a sandbox with a network.

A stage's layer is named by the hash of everything it depends on, so a changed file builds anew and a changed
name does not. One process builds a layer once; two at once both build, and the first to finish wins.
"""

import asyncio
import contextlib
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from harbor.environments.base import SandboxBuildFailedError

from termrl.sandbox.client import KeeperClient
from termrl.sandbox.errors import SandboxRefused
from termrl.sandbox.images import ImageStore
from termrl.sandbox.keeper.messages import BootPlan, CommandPlan
from termrl.sandbox.layers import LayerStore
from termrl.sandbox.recipe import HOST_IMAGE, SCRATCH, Copy, Image, Recipe, Run, Stage
from termrl.sandbox.tmux import find_tmux

_LOG_TAIL = 2000


class LayerBuildFailed(SandboxBuildFailedError):
    """A step of a Dockerfile ended badly; says which, and the end of what it said."""


@dataclass
class Builder:
    keeper: KeeperClient
    store: LayerStore
    images: ImageStore
    recipe: Recipe
    source: str
    name: str
    one_id: bool
    boot_plan: Callable[[list[str], Stage], BootPlan]
    command_plan: Callable[[Run], CommandPlan]
    own_layers: list[Path] = field(default_factory=list)

    async def lowers(self, stage: Stage, *, fresh: bool = False) -> list[str]:
        """What a sandbox on this stage is stacked from, top first; built where it is not there yet."""
        stack = self._image_lowers(self.recipe.image(stage))
        for part in self.recipe.built(stage):
            layer = self.recipe.key(part, str(self.store.owner), str(self.store.overlay), *stack[-1:])
            if fresh:
                # Built anew for this sandbox alone: others may be standing on the one in the cache.
                directory = self.store.new_directory()
                self.own_layers.append(directory)
                await self._run_steps(part, stack, directory)
                layer = directory.name
            else:
                await self._once(layer, part, stack)
                self.store.used(layer)
            stack = self.store.lowers(stack, layer)
        return stack

    async def _once(self, layer: str, stage: Stage, below: list[str]) -> None:
        async with self.keeper.builds.setdefault(f"{self.store.root}/{layer}", asyncio.Lock()):
            if not self.store.has(layer):
                with self.store.building(layer) as directory:
                    await self._run_steps(stage, below, directory)

    def _image_lowers(self, image: Image) -> list[str]:
        tmux = find_tmux()
        if image.reference == HOST_IMAGE:
            return [self.store.base(tmux)]
        foundation = self.store.foundation(tmux)
        return [foundation] if image.reference == SCRATCH else [f"image-{image.key}/root", foundation]

    async def _run_steps(self, stage: Stage, below: list[str], directory: Path) -> None:
        builder = f"{self.name}-build-{directory.name}"
        plan = self.boot_plan(below, stage)
        plan["keep_in"] = self.store.place_for_changes(directory, below)
        async with self._booted(builder, plan):
            for step in stage.steps:
                if isinstance(step, Copy):
                    await self._copy(builder, step)
                else:
                    await self._run(builder, step)
        self.store.finish(directory)

    @contextlib.asynccontextmanager
    async def _booted(self, name: str, plan: BootPlan) -> AsyncIterator[None]:
        """A sandbox for a while. Stopped even where the boot itself was cancelled: it may be half made."""
        try:
            await self.keeper.ask("boot", name=name, plan=plan)
            yield
        finally:
            await self.keeper.ask("stop", name=name)

    async def _run(self, builder: str, step: Run) -> None:
        reply = await self.keeper.ask("exec", name=builder, plan=self.command_plan(step), timeout=None)
        if reply["code"] == 0:
            return
        output = (reply["stdout"] + reply["stderr"]).decode(errors="replace").strip()[-_LOG_TAIL:]
        why = ""
        if self.one_id and "Invalid argument" in output:
            why = " (an ordinary user without subordinate ids has no other owner to give files to)"
        raise LayerBuildFailed(
            f"{self.source}, line {step.line}: RUN ended with {reply['code']}{why}: {output}"
        )

    async def _copy(self, builder: str, step: Copy) -> None:
        with tempfile.TemporaryDirectory(prefix="termrl-build-") as folder:
            if step.stage is not None or step.image is not None:
                await self._copy_from(builder, step, Path(folder))
                return
            source, directory = self._staged(step, Path(folder))
            await self._upload(builder, step, source, step.target, directory)

    def _staged(self, step: Copy, folder: Path) -> tuple[Path, bool]:
        """Where on the host what is to be copied lies, as the build should see it."""
        if step.content is not None:
            (folder / "content").write_bytes(step.content)
            return folder / "content", False
        assert step.source is not None
        if step.unpack:
            with tarfile.open(step.source) as archive:
                archive.extractall(folder, filter="tar")
            return folder, True
        if not step.directory or not self.recipe.ignored.rules:
            return step.source, step.directory
        for path in self.recipe.files_of(step.source):
            target = folder / path.relative_to(step.source)
            if path.is_dir() and not path.is_symlink():
                target.mkdir(parents=True, exist_ok=True)
                shutil.copystat(path, target)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target, follow_symlinks=False)
        return folder, True

    async def _copy_from(self, builder: str, step: Copy, folder: Path) -> None:
        """Out of a sandbox on the other stage or image, and in again; owners are not kept, as with Docker."""
        if step.image is not None:
            lowers, stage = self._image_lowers(step.image), Stage(step.image)
        else:
            assert step.stage is not None
            stage = self.recipe.stages[step.stage]
            lowers = await self.lowers(stage)
        origin = f"{builder}-from-{step.line}"
        async with self._booted(origin, self.boot_plan(lowers, stage)):
            for place, (path, directory) in enumerate(await self._inner_paths(origin, step)):
                copied = folder / str(place)
                target = step.target
                if directory:
                    await self.keeper.ask(
                        "download", name=origin, source=path, target=str(copied), directory=True
                    )
                else:
                    copied.mkdir()
                    copied = copied / Path(path).name
                    await self.keeper.ask(
                        "download", name=origin, source=path, target=str(copied), directory=False
                    )
                    target = f"{target.rstrip('/')}/{copied.name}" if step.into else target
                await self._upload(builder, step, copied, target, directory)

    async def _inner_paths(self, origin: str, step: Copy) -> list[tuple[str, bool]]:
        script = (
            'for f in $1; do if [ -d "$f" ]; then echo "d$f"; elif [ -e "$f" ]; then echo "f$f"; fi; done'
        )
        listing = Run(step.line, ("/bin/sh", "-c", script, "sh", step.inner), "/", ())
        reply = await self.keeper.ask("exec", name=origin, plan=self.command_plan(listing), timeout=60)
        found = [(line[1:], line[0] == "d") for line in reply["stdout"].decode().splitlines()]
        if not found:
            raise LayerBuildFailed(
                f"{self.source}, line {step.line}: there is no {step.inner} to copy from the other stage."
            )
        return found

    async def _upload(self, builder: str, step: Copy, source: Path, target: str, directory: bool) -> None:
        options: dict[str, object] = {"owner": step.owner, "mode": step.mode}
        try:
            await self.keeper.ask(
                "upload", name=builder, source=str(source), target=target, directory=directory, **options
            )
        except SandboxRefused as error:
            raise LayerBuildFailed(f"{self.source}, line {step.line}: COPY to {target}: {error}") from error
