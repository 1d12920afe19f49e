"""What a Dockerfile comes to: stages, each a base and the steps done on it, and what a sandbox on it is told.

A stage's key names the content of all that it is built from: two recipes with one key are one layer.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from termrl.sandbox.dockerignore import Ignored

HOST_IMAGE = "termrl/host"
SCRATCH = "scratch"
WAYS_OUT = "use environment_type=docker"
_FORMAT = "layer 2"


@dataclass(frozen=True)
class Image:
    """A root file system to start from; `key` names its content, and is empty for the host itself."""

    reference: str
    key: str = ""
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = "/"
    user: str = "root"


FindImage = Callable[[str, str], Image]
"""The image of a reference; raises a sentence that begins with the place where it is asked for."""


@dataclass(frozen=True)
class Copy:
    """Of `source` in the context, of `inner` in a stage or an image, or of the text `content`."""

    line: int
    source: Path | None
    target: str
    directory: bool = False
    owner: str = ""
    mode: int | None = None
    stage: int | None = None
    image: Image | None = None
    inner: str = ""
    content: bytes | None = None
    unpack: bool = False
    into: bool = False


@dataclass(frozen=True)
class Run:
    line: int
    argv: tuple[str, ...]
    workdir: str
    env: tuple[tuple[str, str], ...]
    user: str = "root"


@dataclass
class Stage:
    base: "Image | int"
    line: int = 1
    name: str = ""
    workdir: str = "/"
    user: str = "root"
    directories: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    steps: list[Copy | Run] = field(default_factory=list)

    def values(self) -> dict[str, str]:
        """What a variable stands for here: ENV goes before ARG."""
        return {**self.arguments, **self.env}


@dataclass
class Recipe:
    stages: list[Stage]
    context: Path
    ignored: Ignored = field(default_factory=Ignored)

    @property
    def final(self) -> Stage:
        return self.stages[-1]

    def image(self, stage: Stage) -> Image:
        """What the stage stands on in the end."""
        while isinstance(stage.base, int):
            stage = self.stages[stage.base]
        return stage.base

    def built(self, stage: Stage) -> list[Stage]:
        """The stages with steps that `stage` is stacked from, the lowest first."""
        below = self.built(self.stages[stage.base]) if isinstance(stage.base, int) else []
        return [*below, stage] if stage.steps else below

    def key(self, stage: Stage, *context: str) -> str:
        """The hash of everything the built stage depends on; of no name that anyone gave it."""
        below = self.built(stage)[:-1] if stage.steps else self.built(stage)
        beneath = self.key(below[-1], *context) if below else self.image(stage).key
        digest = hashlib.sha256(repr((_FORMAT, context, beneath, stage.directories)).encode())
        for step in stage.steps:
            if isinstance(step, Run):
                digest.update(repr((step.argv, step.workdir, step.env, step.user)).encode())
                continue
            digest.update(repr((step.target, step.directory, step.owner, step.mode, step.inner)).encode())
            digest.update(repr((step.unpack, step.into, step.content)).encode())
            if step.stage is not None:
                digest.update(self.key(self.stages[step.stage], *context).encode())
            if step.image is not None:
                digest.update(step.image.key.encode())
            if step.source is not None:
                self._digest_files(digest, step.source)
        return digest.hexdigest()[:24]

    def files_of(self, source: Path) -> list[Path]:
        """The files, links and directories at and below `source` that a build gets to see."""
        inside = sorted(source.rglob("*")) if source.is_dir() and not source.is_symlink() else []
        return [
            path
            for path in (source, *inside)
            if path == source or path.relative_to(self.context).as_posix() not in self.ignored
        ]

    def _digest_files(self, digest: "hashlib._Hash", source: Path) -> None:
        for path in self.files_of(source):
            name = path.relative_to(source).as_posix()
            digest.update(repr((name, path.lstat().st_mode)).encode())
            if path.is_symlink():
                digest.update(os.readlink(path).encode())
            elif path.is_file():
                digest.update(hashlib.sha256(path.read_bytes()).digest())
