"""What a Dockerfile comes to: stages, each a base and the steps done on it, and what a sandbox on it is told.

FROM, COPY, ADD, RUN, ENV, ARG, WORKDIR, USER, SHELL and VOLUME are honoured; LABEL, EXPOSE, CMD, MAINTAINER
and STOPSIGNAL change nothing in a sandbox that Harbor starts. Anything else is refused by name and line,
never skipped: a task that means more than this needs a backend that has it.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from termrl.sandbox.dockerfile import Instruction, expand, read_instructions
from termrl.sandbox.dockerignore import Ignored, read_dockerignore
from termrl.sandbox.errors import UnsupportedEnvironment

HOST_IMAGE = "termrl/host"
SCRATCH = "scratch"
WAYS_OUT = "use environment_type=docker"
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_WITHOUT_EFFECT = ("LABEL", "EXPOSE", "CMD", "MAINTAINER", "STOPSIGNAL")
_COPY_FLAGS = ("from", "chown", "chmod", "link")
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


def read_dockerfile(path: Path, find_image: FindImage, arguments: dict[str, str] | None = None) -> Recipe:
    """The recipe of a Dockerfile whose directory is the build context; raises `UnsupportedEnvironment`."""
    return _Reader(path, find_image, arguments or {}).read()


class _Reader:
    def __init__(self, path: Path, find_image: FindImage, arguments: dict[str, str]) -> None:
        self._path = path
        self._context = path.parent
        self._find_image = find_image
        self._given = arguments
        self._before: dict[str, str] = {}
        self._stages: list[Stage] = []
        self._ignored = read_dockerignore(path.parent)

    def read(self) -> Recipe:
        readers = {
            "FROM": self._from,
            "ARG": self._arg,
            "ENV": self._env,
            "RUN": self._run,
            "COPY": self._copy,
            "ADD": self._copy,
            "WORKDIR": self._workdir,
            "USER": self._user,
            "SHELL": self._shell,
            "VOLUME": self._volume,
        }
        for instruction in read_instructions(self._path):
            where = f"{self._path}, line {instruction.line}"
            if not self._stages and instruction.name not in ("FROM", "ARG"):
                break
            if instruction.name in _WITHOUT_EFFECT:
                continue
            if instruction.name not in readers:
                raise UnsupportedEnvironment(
                    f"{where}: the local sandbox does not have {instruction.name} "
                    f"(it has {', '.join(readers)}): {WAYS_OUT}."
                )
            readers[instruction.name](instruction, where)
        if not self._stages:
            raise UnsupportedEnvironment(
                f"{self._path} does not begin with FROM: begin it with FROM and an image, "
                f"or with FROM {HOST_IMAGE}."
            )
        return Recipe(self._stages, self._context, self._ignored)

    @property
    def _stage(self) -> Stage:
        return self._stages[-1]

    def _filled(self, instruction: Instruction, where: str) -> list[str]:
        """The words of either form, expanded."""
        words = instruction.json_words()
        values = self._stage.values()
        if words is not None:
            return [expand(word.replace("\\", "\\\\"), values, where) for word in words]
        return [expand(word, values, where, instruction.escape) for word in instruction.words()]

    def _refuse_flags(self, instruction: Instruction, where: str, known: tuple[str, ...] = ()) -> None:
        for flag, _ in instruction.flags:
            if flag not in known:
                raise UnsupportedEnvironment(
                    f"{where}: the local sandbox does not have {instruction.name} --{flag}: {WAYS_OUT}."
                )

    def _from(self, instruction: Instruction, where: str) -> None:
        self._refuse_flags(instruction, where)
        words = [expand(word, self._before, where, instruction.escape) for word in instruction.words()]
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            raise UnsupportedEnvironment(f"{where}: FROM {instruction.text} is not FROM IMAGE [AS NAME].")
        name = words[2].lower() if len(words) == 3 else ""
        earlier = self._index(words[0])
        if earlier is not None:
            source = self._stages[earlier]
            stage = Stage(earlier, instruction.line, name, source.workdir, source.user)
            stage.env, stage.directories, stage.shell = (
                dict(source.env),
                list(source.directories),
                source.shell,
            )
        else:
            image = self._find_image(words[0], f"{where}: FROM {words[0]}")
            stage = Stage(image, instruction.line, name, image.workdir, image.user)
            stage.env = dict(image.env)
        self._stages.append(stage)

    def _index(self, reference: str) -> int | None:
        """The earlier stage of that name or number."""
        for place in reversed(range(len(self._stages))):
            if self._stages[place].name and self._stages[place].name == reference.lower():
                return place
        return None

    def _arg(self, instruction: Instruction, where: str) -> None:
        values = self._stage.values() if self._stages else self._before
        for word in instruction.words():
            name, equals, value = word.partition("=")
            filled = expand(value, values, where, instruction.escape) if equals else None
            if not self._stages:
                self._before[name] = self._given.get(name, filled or "")
                continue
            filled = self._given.get(name, filled)
            if filled is None:
                filled = self._before.get(name)
            if filled is not None:
                self._stage.arguments[name] = filled

    def _env(self, instruction: Instruction, where: str) -> None:
        known = self._stage.values()
        words = instruction.words()
        if not words:
            raise UnsupportedEnvironment(f"{where}: ENV needs a name and a value: write ENV NAME=value.")
        if "=" not in words[0]:
            name, _, value = instruction.text.partition(" ")
            if not value.strip():
                raise UnsupportedEnvironment(f"{where}: ENV {name} has no value: write ENV {name}=value.")
            self._stage.env[name] = expand(value.strip(), known, where, instruction.escape)
            return
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise UnsupportedEnvironment(f"{where}: ENV {word} has no value: write ENV {word}=value.")
            self._stage.env[name] = expand(value, known, where, instruction.escape)

    def _run(self, instruction: Instruction, where: str) -> None:
        self._refuse_flags(instruction, where)
        stage = self._stage
        words = instruction.json_words()
        if words is not None:
            argv = tuple(words)
        elif (
            len(instruction.heredocs) == 1
            and instruction.text.lstrip("<-").strip("'\"") == instruction.heredocs[0].name
        ):
            # A heredoc that is the whole command is a script; `#!` names its interpreter.
            argv = _script(instruction.heredocs[0].content, stage.shell)
        else:
            text = instruction.text
            for heredoc in instruction.heredocs:
                text += f"\n{heredoc.content}{heredoc.name}"
            argv = (*stage.shell, text + ("\n" if instruction.heredocs else ""))
        if not argv or not argv[-1].strip():
            raise UnsupportedEnvironment(f"{where}: RUN says nothing to run.")
        env = tuple({**stage.arguments, **stage.env}.items())
        stage.steps.append(Run(instruction.line, argv, stage.workdir, env, stage.user))

    def _workdir(self, instruction: Instruction, where: str) -> None:
        path = expand(instruction.text, self._stage.values(), where, instruction.escape)
        if not path:
            raise UnsupportedEnvironment(f"{where}: WORKDIR names no directory.")
        self._stage.workdir = os.path.normpath(PurePosixPath(self._stage.workdir, path))
        self._stage.directories.append(self._stage.workdir)

    def _user(self, instruction: Instruction, where: str) -> None:
        user = expand(instruction.text, self._stage.values(), where, instruction.escape)
        if not user:
            raise UnsupportedEnvironment(f"{where}: USER names no user.")
        self._stage.user = "root" if user in ("0", "root", "0:0", "root:root") else user

    def _shell(self, instruction: Instruction, where: str) -> None:
        words = instruction.json_words()
        if not words:
            raise UnsupportedEnvironment(f'{where}: SHELL is written as a list: SHELL ["/bin/bash", "-c"].')
        self._stage.shell = tuple(words)

    def _volume(self, instruction: Instruction, where: str) -> None:
        for path in self._filled(instruction, where):
            self._stage.directories.append(os.path.normpath(PurePosixPath(self._stage.workdir, path)))

    def _copy(self, instruction: Instruction, where: str) -> None:
        self._refuse_flags(instruction, where, _COPY_FLAGS)
        name, flags = instruction.name, dict(instruction.flags)
        words = self._filled(instruction, where)
        if len(words) < 2:
            raise UnsupportedEnvironment(f"{where}: {name} needs a source and a target.")
        *patterns, target = words
        absolute = str(PurePosixPath(self._stage.workdir, target))
        into = target.endswith("/") or target in (".", "./")
        options: dict[str, Any] = {
            "owner": _owner(flags, self._stage, where, instruction),
            "mode": _mode(flags, where),
        }
        steps: list[Copy] = []
        contents = {f"<<{doc.name}": doc for doc in instruction.heredocs}
        for pattern in patterns:
            plain = pattern.replace("<<-", "<<")
            if plain in contents:
                doc = contents[plain]
                text = doc.content if doc.literal else _expand_text(doc.content, self._stage.values(), where)
                place = f"{absolute.rstrip('/')}/{doc.name}" if into else absolute
                steps.append(Copy(instruction.line, None, place, content=text.encode(), **options))
            elif "from" in flags:
                steps.append(
                    self._copy_from(instruction, flags["from"], pattern, absolute, into, where, options)
                )
            elif "://" in pattern or pattern.startswith("git@"):
                raise UnsupportedEnvironment(
                    f"{where}: {name} {pattern} comes from elsewhere and may change unseen: "
                    f"put it into {self._context} and COPY it, or {WAYS_OUT}."
                )
            else:
                for source in self._matching(pattern, where, name):
                    unpack = name == "ADD" and source.is_file() and source.name.endswith(_ARCHIVES)
                    steps.append(self._copy_of(instruction.line, source, absolute, into, unpack, options))
        if len(steps) > 1 and not into and any(not step.directory and not step.unpack for step in steps):
            raise UnsupportedEnvironment(
                f"{where}: {name} has several sources, so its target {target} must end with a '/'."
            )
        self._stage.steps += steps

    def _copy_of(
        self, line: int, source: Path, absolute: str, into: bool, unpack: bool, options: dict[str, Any]
    ) -> Copy:
        whole = source.is_dir() or unpack
        place = f"{absolute.rstrip('/')}/{source.name}" if into and not whole else absolute
        return Copy(line, source, place, source.is_dir(), unpack=unpack, **options)

    def _copy_from(
        self,
        instruction: Instruction,
        reference: str,
        inner: str,
        absolute: str,
        into: bool,
        where: str,
        options: dict[str, Any],
    ) -> Copy:
        index = self._index(reference)
        if index is None and reference.isdecimal() and int(reference) < len(self._stages) - 1:
            index = int(reference)
        image = None
        if index is None:
            image = self._find_image(reference, f"{where}: {instruction.name} --from={reference}")
        inner = "/" + inner.lstrip("/")
        return Copy(
            instruction.line, None, absolute, stage=index, image=image, inner=inner, into=into, **options
        )

    def _matching(self, pattern: str, where: str, name: str) -> list[Path]:
        relative = os.path.normpath(pattern.lstrip("/") or ".")
        if relative.startswith(".."):
            raise UnsupportedEnvironment(
                f"{where}: {name} {pattern} leads out of {self._context}: copy it in there first."
            )
        exact = self._context / relative
        if os.path.lexists(exact) and (relative == "." or relative not in self._ignored):
            return [exact]
        depth = len(Path(relative).parts)
        found = [
            path
            for path in sorted(self._context.rglob("*"))
            if len(path.relative_to(self._context).parts) == depth
            and fnmatch(path.relative_to(self._context).as_posix(), relative)
            and path.relative_to(self._context).as_posix() not in self._ignored
        ]
        if not found:
            raise UnsupportedEnvironment(
                f"{where}: {name} {pattern} names nothing in {self._context}: add it or drop the line."
            )
        return found


def _script(content: str, shell: tuple[str, ...]) -> tuple[str, ...]:
    if not content.startswith("#!"):
        return (*shell, content)
    first, _, rest = content.partition("\n")
    return (*first[2:].split(), "-c", rest)


def _expand_text(content: str, values: dict[str, str], where: str) -> str:
    """A heredoc's text: variables are filled in, quotes stay."""
    kept = content.replace("'", "\\'").replace('"', '\\"')
    return expand(kept, values, where)


def _owner(flags: dict[str, str], stage: Stage, where: str, instruction: Instruction) -> str:
    owner = expand(flags.get("chown", ""), stage.values(), where, instruction.escape)
    return "" if owner in ("0", "root", "0:0", "root:root") else owner


def _mode(flags: dict[str, str], where: str) -> int | None:
    if "chmod" not in flags:
        return None
    try:
        return int(flags["chmod"], 8)
    except ValueError:
        raise UnsupportedEnvironment(
            f"{where}: --chmod={flags['chmod']} is not an octal mode: {WAYS_OUT}."
        ) from None
