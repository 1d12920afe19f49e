"""Reads a Dockerfile into its recipe.

FROM, COPY, ADD, RUN, ENV, ARG, WORKDIR, USER, SHELL and VOLUME are honoured; LABEL, EXPOSE, CMD, MAINTAINER
and STOPSIGNAL change nothing in a sandbox that Harbor starts. Anything else is refused by name and line,
never skipped: a task that means more than this needs a backend that has it.
"""

import os
from pathlib import Path, PurePosixPath

from termrl.sandbox.copying import CopyReader, index_of, refuse_flags
from termrl.sandbox.dockerfile import Instruction, expand, read_instructions
from termrl.sandbox.dockerignore import read_dockerignore
from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.recipe import HOST_IMAGE, WAYS_OUT, FindImage, Recipe, Run, Stage

_WITHOUT_EFFECT = ("LABEL", "EXPOSE", "CMD", "MAINTAINER", "STOPSIGNAL")


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
        self._copying = CopyReader(self._context, self._ignored, find_image, self._stages)

    def read(self) -> Recipe:
        readers = {
            "FROM": self._from,
            "ARG": self._arg,
            "ENV": self._env,
            "RUN": self._run,
            "COPY": self._copies,
            "ADD": self._copies,
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

    def _from(self, instruction: Instruction, where: str) -> None:
        refuse_flags(instruction, where)
        words = [expand(word, self._before, where, instruction.escape) for word in instruction.words()]
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].lower() != "as"):
            raise UnsupportedEnvironment(f"{where}: FROM {instruction.text} is not FROM IMAGE [AS NAME].")
        name = words[2].lower() if len(words) == 3 else ""
        earlier = index_of(words[0], self._stages)
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
        refuse_flags(instruction, where)
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

    def _copies(self, instruction: Instruction, where: str) -> None:
        self._stage.steps += self._copying.read(instruction, self._filled(instruction, where), where)


def _script(content: str, shell: tuple[str, ...]) -> tuple[str, ...]:
    if not content.startswith("#!"):
        return (*shell, content)
    first, _, rest = content.partition("\n")
    return (*first[2:].split(), "-c", rest)
