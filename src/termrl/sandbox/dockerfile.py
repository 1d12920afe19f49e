"""Reads a Dockerfile into its instructions, as BuildKit does: the syntax, and nothing of the meaning.

Comments, the `escape` directive, line continuations, `--flags`, heredocs, the words of an instruction with
their quotes, and `$NAME`, `${NAME}`, `${NAME:-word}`, `${NAME:+word}`, `${NAME:?word}`. What the instructions
come to is `recipe`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from termrl.sandbox.errors import UnsupportedEnvironment

_DIRECTIVE = re.compile(r"^#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*$")
_HEREDOC = re.compile(r"^\d*<<(-?)\s*(['\"]?)([a-zA-Z_][\w.]*)\2$")
_WITH_FLAGS = ("FROM", "RUN", "COPY", "ADD", "HEALTHCHECK")
_WITH_HEREDOCS = ("RUN", "COPY", "ADD")
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Heredoc:
    """`literal` is one whose word was quoted: nothing in it is expanded."""

    name: str
    content: str
    literal: bool


@dataclass(frozen=True)
class Instruction:
    line: int
    name: str
    flags: tuple[tuple[str, str], ...]
    text: str
    heredocs: tuple[Heredoc, ...]
    escape: str

    def json_words(self) -> list[str] | None:
        """The words of the exec form `["a", "b"]`, or None where this is the shell form."""
        if not self.text.startswith("["):
            return None
        try:
            words = json.loads(self.text)
        except ValueError:
            return None
        is_list = isinstance(words, list) and all(isinstance(word, str) for word in words)
        return words if is_list else None

    def words(self) -> list[str]:
        """The words as they stand, quotes and all."""
        return split_words(self.text, self.escape)


def read_instructions(path: Path) -> list[Instruction]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UnsupportedEnvironment(f"{path} can't be read: {error}.") from error
    return list(parse(text, str(path)))


def parse(text: str, source: str = "Dockerfile") -> Iterator[Instruction]:
    lines = text.removeprefix("\ufeff").splitlines()
    escape = _escape_directive(lines, source)
    continued = re.compile(re.escape(escape) + r"[ \t]*$")
    number = 0
    while number < len(lines):
        first, joined, more = number + 1, "", True
        while more and number < len(lines):
            line = lines[number]
            number += 1
            if not line.strip() or line.lstrip().startswith("#"):
                if not joined:
                    first = number + 1
                continue
            more = bool(continued.search(line))
            joined += continued.sub("", line) if more else line
        if joined.strip():
            instruction, number = _instruction(joined.strip(), first, lines, number, escape, source)
            yield instruction


def _escape_directive(lines: list[str], source: str) -> str:
    for line in lines:
        directive = _DIRECTIVE.match(line)
        if directive is None:
            break
        if directive[1].lower() == "escape":
            if directive[2] not in ("\\", "`"):
                raise UnsupportedEnvironment(f"{source}: escape={directive[2]} is neither \\ nor `.")
            return directive[2]
    return "\\"


def _instruction(
    joined: str, line: int, lines: list[str], number: int, escape: str, source: str
) -> tuple[Instruction, int]:
    name, _, rest = joined.partition(" ") if " " in joined else joined.partition("\t")
    name, rest = name.upper(), rest.strip()
    if "\t" in name:
        name, _, before = name.partition("\t")
        rest = f"{before} {rest}".strip()
    flags: list[tuple[str, str]] = []
    while name in _WITH_FLAGS and rest.startswith("--"):
        word, *after = rest.split(maxsplit=1)
        rest = after[0] if after else ""
        if word == "--":
            break
        flag, _, value = word[2:].partition("=")
        flags.append((flag, value))
    heredocs: list[Heredoc] = []
    if name in _WITH_HEREDOCS:
        for word in split_words(rest, escape):
            opened = _HEREDOC.match(word)
            if opened is None:
                continue
            body: list[str] = []
            while number < len(lines):
                raw = lines[number].lstrip("\t") if opened[1] else lines[number]
                number += 1
                if raw == opened[3]:
                    break
                body.append(f"{raw}\n")
            else:
                raise UnsupportedEnvironment(f"{source}, line {line}: the heredoc {opened[3]} is not closed.")
            heredocs.append(Heredoc(opened[3], "".join(body), bool(opened[2])))
    return Instruction(line, name, tuple(flags), rest, tuple(heredocs), escape), number


def split_words(text: str, escape: str = "\\") -> list[str]:
    """Splits at blanks outside quotes; a word keeps its quotes and escapes."""
    words: list[str] = []
    word, quote, place = "", "", 0
    while place < len(text):
        character = text[place]
        if character == escape and quote != "'" and place + 1 < len(text):
            word += text[place : place + 2]
            place += 2
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character.isspace():
            if word:
                words.append(word)
            word = ""
            place += 1
            continue
        word += character
        place += 1
    return [*words, word] if word else words


def expand(word: str, values: Mapping[str, str], where: str, escape: str = "\\") -> str:
    """The word with its quotes taken off and its variables filled in; a name without a value is empty."""
    result, quote, place = "", "", 0
    while place < len(word):
        character = word[place]
        if quote == "'":
            quote = "" if character == "'" else quote
            result += "" if character == "'" else character
        elif character == escape and place + 1 < len(word):
            place += 1
            # Inside double quotes an escape is itself unless it stands before what it would protect.
            result += word[place] if not quote or word[place] in f'"${escape}' else escape + word[place]
        elif character == quote:
            quote = ""
        elif character in "'\"" and not quote:
            quote = character
        elif character == "$":
            filled, place = _variable(word, place, values, where, escape)
            result += filled
            continue
        else:
            result += character
        place += 1
    return result


def _variable(word: str, place: int, values: Mapping[str, str], where: str, escape: str) -> tuple[str, int]:
    if word[place + 1 : place + 2] != "{":
        named = _NAME.match(word, place + 1)
        if named is None:
            return "$", place + 1
        return values.get(named[0], ""), named.end()
    end = _closing_brace(word, place + 2)
    inside = word[place + 2 : end]
    named = _NAME.match(inside)
    if end < 0 or named is None:
        raise UnsupportedEnvironment(f"{where}: {word} is not a variable: write $NAME or ${{NAME}}.")
    name, rest = named[0], inside[named.end() :]
    if not rest:
        return values.get(name, ""), end + 1
    operator = rest[:2] if rest[0] == ":" else rest[0]
    other = rest[len(operator) :]
    given = bool(values.get(name)) if operator.startswith(":") else name in values
    match operator[-1]:
        case "-":
            return (values[name] if given else expand(other, values, where, escape)), end + 1
        case "+":
            return (expand(other, values, where, escape) if given else ""), end + 1
        case "?":
            if not given:
                raise UnsupportedEnvironment(f"{where}: {name} has no value: {other or 'it is required'}.")
            return values[name], end + 1
    raise UnsupportedEnvironment(
        f"{where}: the local sandbox does not read ${{{inside}}}: it reads ${{NAME}} with :-, :+ and :?; "
        "use environment_type=docker."
    )


def _closing_brace(word: str, place: int) -> int:
    depth = 1
    while place < len(word):
        depth += {"{": 1, "}": -1}.get(word[place], 0)
        if depth == 0:
            return place
        place += 1
    return -1
