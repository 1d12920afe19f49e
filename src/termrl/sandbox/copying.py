"""Reads COPY and ADD: what each takes from the build context, an earlier stage, an image or its own text."""

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from termrl.sandbox.dockerfile import Instruction, expand
from termrl.sandbox.dockerignore import Ignored
from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.recipe import WAYS_OUT, Copy, FindImage, Stage

_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_FLAGS = ("from", "chown", "chmod", "link")


def refuse_flags(instruction: Instruction, where: str, known: Sequence[str] = ()) -> None:
    for flag, _ in instruction.flags:
        if flag not in known:
            raise UnsupportedEnvironment(
                f"{where}: the local sandbox does not have {instruction.name} --{flag}: {WAYS_OUT}."
            )


def index_of(reference: str, stages: Sequence[Stage]) -> int | None:
    """The earlier stage of that name."""
    for place in reversed(range(len(stages))):
        if stages[place].name and stages[place].name == reference.lower():
            return place
    return None


class CopyReader:
    def __init__(
        self, context: Path, ignored: Ignored, find_image: FindImage, stages: Sequence[Stage]
    ) -> None:
        """`stages` are those read so far; the last of them is being read."""
        self._context = context
        self._ignored = ignored
        self._find_image = find_image
        self._stages = stages

    @property
    def _stage(self) -> Stage:
        return self._stages[-1]

    def read(self, instruction: Instruction, words: list[str], where: str) -> list[Copy]:
        """The steps of a COPY or ADD of the last stage; `words` are its own, expanded."""
        refuse_flags(instruction, where, _FLAGS)
        name, flags = instruction.name, dict(instruction.flags)
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
        return steps

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
        index = index_of(reference, self._stages)
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
