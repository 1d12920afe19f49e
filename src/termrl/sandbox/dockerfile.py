"""The small part of the Dockerfile language that a sandbox on the host's own /usr can honour.

`FROM termrl/host`, WORKDIR, COPY, ENV and RUN, with comments and line continuations. Anything else is
refused by name, never skipped: a task that means more than this needs an environment that has it.
"""

import hashlib
import json
import os
import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from termrl.sandbox.errors import UnsupportedEnvironment

HOST_IMAGE = "termrl/host"
WAYS_OUT = "use environment_type=docker, or write the environment for FROM termrl/host"


@dataclass(frozen=True)
class Copy:
    line: int
    source: Path
    target: str
    directory: bool


@dataclass(frozen=True)
class Run:
    line: int
    argv: tuple[str, ...]
    workdir: str
    env: tuple[tuple[str, str], ...]


@dataclass
class Recipe:
    """What a Dockerfile comes to. `steps` are done once, when the layer is built."""

    workdir: str = "/"
    directories: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    steps: list[Copy | Run] = field(default_factory=list)

    def key(self, *context: str) -> str:
        """The hash of everything the built layer depends on."""
        digest = hashlib.sha256(repr(("layer 1", context, self.directories)).encode())
        for step in self.steps:
            if isinstance(step, Run):
                digest.update(repr((step.argv, step.workdir, step.env)).encode())
                continue
            digest.update(repr((step.target, step.directory)).encode())
            for path in _files_of(step.source):
                name = path.relative_to(step.source).as_posix()
                digest.update(repr((name, path.lstat().st_mode)).encode())
                if path.is_symlink():
                    digest.update(os.readlink(path).encode())
                elif path.is_file():
                    digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()[:24]


def read_dockerfile(path: Path) -> Recipe:
    """Parse `path`, whose directory is the build context; raises `UnsupportedEnvironment`."""
    recipe = Recipe()
    lines = _instructions(path.read_text())
    if not lines or lines[0][1] != "FROM":
        raise UnsupportedEnvironment(f"{path} does not begin with FROM: begin it with FROM {HOST_IMAGE}.")
    for place, (line, name, rest) in enumerate(lines):
        where = f"{path}, line {line}"
        if name == "FROM" and place == 0 and rest == HOST_IMAGE:
            continue
        if name == "FROM":
            raise UnsupportedEnvironment(
                f"{where}: FROM {rest} needs a container engine, which the local sandbox is not: {WAYS_OUT}."
            )
        if name not in _READERS:
            raise UnsupportedEnvironment(
                f"{where}: the local sandbox does not have {name} (it has FROM {HOST_IMAGE}, WORKDIR, COPY, "
                f"ENV and RUN): {WAYS_OUT}."
            )
        _READERS[name](recipe, rest, line, where, path.parent)
    return recipe


def _instructions(text: str) -> list[tuple[int, str, str]]:
    found: list[tuple[int, str, str]] = []
    pending, first = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        first = first or number
        if line.endswith("\\"):
            pending += line[:-1].rstrip() + " "
            continue
        name, _, rest = (pending + line).partition(" ")
        found.append((first, name.upper(), rest.strip()))
        pending, first = "", 0
    if pending:
        name, _, rest = pending.partition(" ")
        found.append((first, name.upper(), rest.strip()))
    return found


def _read_workdir(recipe: Recipe, rest: str, line: int, where: str, context: Path) -> None:
    path = _expand(rest.strip("\"'"), recipe.env, where)
    recipe.workdir = os.path.normpath(PurePosixPath(recipe.workdir, path))
    recipe.directories.append(recipe.workdir)


def _read_env(recipe: Recipe, rest: str, line: int, where: str, context: Path) -> None:
    known = dict(recipe.env)
    if "=" not in rest.split(maxsplit=1)[0]:
        name, _, value = rest.partition(" ")
        recipe.env[name] = _expand(value.strip(), known, where)
        return
    for word in shlex.split(rest):
        name, equals, value = word.partition("=")
        if not equals:
            raise UnsupportedEnvironment(f"{where}: ENV {word} has no value: write ENV {word}=value.")
        recipe.env[name] = _expand(value, known, where)


def _read_run(recipe: Recipe, rest: str, line: int, where: str, context: Path) -> None:
    if rest.startswith("--") or rest.startswith("<<"):
        raise UnsupportedEnvironment(
            f"{where}: the local sandbox does not have RUN {rest.split()[0]}: {WAYS_OUT}."
        )
    argv = _json_words(rest) or ["/bin/sh", "-c", rest]
    recipe.steps.append(Run(line, tuple(argv), recipe.workdir, tuple(recipe.env.items())))


def _read_copy(recipe: Recipe, rest: str, line: int, where: str, context: Path) -> None:
    words = _json_words(rest) or shlex.split(rest)
    if words and (words[0].startswith("--") or words[0].startswith("<<")):
        raise UnsupportedEnvironment(f"{where}: the local sandbox does not have COPY {words[0]}: {WAYS_OUT}.")
    if len(words) < 2:
        raise UnsupportedEnvironment(f"{where}: COPY needs a source and a target.")
    if (context / ".dockerignore").exists():
        raise UnsupportedEnvironment(f"{where}: the local sandbox does not read .dockerignore: {WAYS_OUT}.")
    *patterns, target = [_expand(word, recipe.env, where) for word in words]
    sources = [source for pattern in patterns for source in _matching(pattern, context, where)]
    absolute = str(PurePosixPath(recipe.workdir, target))
    into = target.endswith("/") or target in (".", "./") or len(sources) > 1
    for source in sources:
        place = f"{absolute.rstrip('/')}/{source.name}" if into and not source.is_dir() else absolute
        recipe.steps.append(Copy(line, source, place, source.is_dir()))


_READERS = {"WORKDIR": _read_workdir, "ENV": _read_env, "RUN": _read_run, "COPY": _read_copy}


def _matching(pattern: str, context: Path, where: str) -> list[Path]:
    relative = os.path.normpath(pattern.lstrip("/") or ".")
    if relative.startswith(".."):
        raise UnsupportedEnvironment(
            f"{where}: COPY {pattern} leads out of {context}: copy it in there first."
        )
    if (context / relative).exists():
        return [context / relative]
    depth = len(Path(relative).parts)
    candidates = [
        path for path in sorted(context.rglob("*")) if len(path.relative_to(context).parts) == depth
    ]
    found = [path for path in candidates if fnmatch(path.relative_to(context).as_posix(), relative)]
    if not found:
        raise UnsupportedEnvironment(
            f"{where}: COPY {pattern} names nothing in {context}: add it or drop the line."
        )
    return found


def _json_words(rest: str) -> list[str] | None:
    if not rest.startswith("["):
        return None
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    return [str(word) for word in words]


def _expand(text: str, env: dict[str, str], where: str) -> str:
    if re.search(r"\$\{\w+[^\w}]", text):
        raise UnsupportedEnvironment(
            f"{where}: the local sandbox reads $NAME and ${{NAME}} only, not {text}."
        )
    return re.sub(r"\$(?:\{(\w+)\}|(\w+))", lambda match: env.get(match[1] or match[2], ""), text)


def _files_of(source: Path) -> list[Path]:
    return [source, *sorted(source.rglob("*"))] if source.is_dir() else [source]
