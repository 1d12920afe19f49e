"""Names of images: what a reference says, and which references an environment is built from.

They are read from task.toml, the Dockerfile (every stage, `COPY --from`, `RUN --mount=from`) and
docker-compose.yaml. `pin` writes a copy of an environment in which each is named by its digest.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from harbor.models.task.config import TaskConfig

from termrl.sandbox.dockerfile import Instruction, expand, read_instructions
from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.recipe import SCRATCH

HUB = "docker.io"
_COMPOSE = "docker-compose.yaml"


@dataclass(frozen=True)
class Reference:
    """`host` is the registry; `name` is as it was written, without tag and digest."""

    host: str
    path: str
    tag: str
    digest: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "Reference":
        rest, _, digest = text.partition("@")
        directory, _, last = rest.rpartition("/")
        last, _, tag = last.partition(":")
        name = f"{directory}/{last}" if directory else last
        host, _, path = name.partition("/")
        if not path or not ("." in host or ":" in host or host == "localhost"):
            host, path = HUB, name
        if host == HUB and "/" not in path:
            path = f"library/{path}"
        return cls(host, path, tag or "latest", digest, name)

    def pinned(self, digest: str) -> str:
        return f"{self.name}@{digest}"


@dataclass(frozen=True)
class Mention:
    """A place in a Dockerfile that names an image: the word as it stands there, and what it comes to."""

    instruction: Instruction
    word: str
    reference: str


def images_of(environment_dir: Path, config: TaskConfig) -> list[str]:
    """Every image that the machine of the agent is built from, in order, each once."""
    if config.environment.docker_image:
        return [config.environment.docker_image]
    dockerfile = environment_dir / "Dockerfile"
    found = mentions(dockerfile) if dockerfile.exists() else []
    return list(dict.fromkeys(mention.reference for mention in found))


def images_of_services(environment_dir: Path) -> list[str]:
    """Those of the services that docker-compose.yaml puts beside it."""
    return list(dict.fromkeys(_services(environment_dir / _COMPOSE).values()))


def mentions(dockerfile: Path) -> list[Mention]:
    found: list[Mention] = []
    stages: list[str] = []
    arguments: dict[str, str] = {}
    for instruction in read_instructions(dockerfile):
        where = f"{dockerfile}, line {instruction.line}"
        words = instruction.words()
        if instruction.name == "ARG" and not stages:
            for word in words:
                name, _, value = word.partition("=")
                arguments[name] = expand(value, arguments, where, instruction.escape)
        elif instruction.name == "FROM" and words:
            reference = expand(words[0], arguments, where, instruction.escape)
            if not reference:
                raise UnsupportedEnvironment(
                    f"{where}: {words[0]} has no value: give the ARG above it a default."
                )
            if reference.lower() not in (SCRATCH, *stages):
                found.append(Mention(instruction, words[0], reference))
            stages.append(words[2].lower() if len(words) == 3 else "")
        for word in _sources(instruction):
            if not word.isdecimal() and word.lower() not in stages:
                found.append(Mention(instruction, word, word))
    return found


def pin(environment_dir: Path, config: TaskConfig, digests: Mapping[str, str], folder: Path) -> Path:
    """A copy of the environment below `folder`, and `config` itself, with every image named by its digest."""
    pinned = {reference: Reference.parse(reference).pinned(digest) for reference, digest in digests.items()}
    copy = folder / "environment"
    if environment_dir.is_dir():
        shutil.copytree(environment_dir, copy, symlinks=True)
    if config.environment.docker_image:
        config.environment.docker_image = pinned[config.environment.docker_image]
    elif (copy / "Dockerfile").exists():
        lines = (copy / "Dockerfile").read_text().splitlines(keepends=True)
        for mention in mentions(copy / "Dockerfile"):
            _replace(lines, mention, pinned[mention.reference])
        (copy / "Dockerfile").write_text("".join(lines))
    services = _services(copy / _COMPOSE)
    if services:
        described = yaml.safe_load((copy / _COMPOSE).read_text())
        for service, reference in services.items():
            described["services"][service]["image"] = pinned[reference]
        (copy / _COMPOSE).write_text(yaml.safe_dump(described))
    return copy


def _sources(instruction: Instruction) -> list[str]:
    """What files are taken from: a stage by name or number, or an image."""
    found = []
    for flag, value in instruction.flags:
        if flag == "from" and instruction.name in ("COPY", "ADD"):
            found.append(value)
        elif flag == "mount" and instruction.name == "RUN":
            options = dict(option.partition("=")[::2] for option in value.split(","))
            found += [options["from"]] if options.get("from") else []
    return found


def _replace(lines: list[str], mention: Mention, pinned: str) -> None:
    """In the first of the instruction's lines that has the word, after the instruction's name."""
    begin = mention.instruction.line - 1
    for number in range(begin, len(lines)):
        line = lines[number]
        after = len(line) - len(line.lstrip()) + len(mention.instruction.name) if number == begin else 0
        if mention.word in line[after:]:
            lines[number] = line[:after] + line[after:].replace(mention.word, pinned, 1)
            return


def _services(compose: Path) -> dict[str, str]:
    """The image of each service that is not built here; names that Harbor fills in are its own."""
    try:
        described: Any = yaml.safe_load(compose.read_text()) if compose.exists() else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UnsupportedEnvironment(f"{compose} can't be read: {error}.") from error
    services = described.get("services") if isinstance(described, dict) else None
    return {
        name: service["image"]
        for name, service in (services or {}).items()
        if isinstance(service, dict)
        and "build" not in service
        and isinstance(service.get("image"), str)
        and "$" not in service["image"]
    }
