"""The few words and options that a command other than `train` takes.

`name=value`, `--name value` and `--name=value` mean the same, as with settings; flags stand alone.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from termrl.errors import UserError


class UsageError(UserError):
    """Words that a command does not take."""


@dataclass(frozen=True, slots=True)
class Arguments:
    words: tuple[str, ...]
    options: Mapping[str, str]
    flags: frozenset[str]


def parse(
    arguments: Iterable[str],
    *,
    words: Sequence[str] = (),
    options: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> Arguments:
    """Sorts the arguments; `words` names the plain ones that may come, in order."""
    plain: list[str] = []
    given: dict[str, str] = {}
    raised: set[str] = set()
    rest = iter(arguments)
    for argument in rest:
        key, equals, value = argument.removeprefix("--").partition("=")
        key = key.replace("-", "_")
        dashed = argument.startswith("--")
        if dashed and not equals and key in flags:
            raised.add(key)
        elif key in options and (equals or dashed):
            given[key] = value if equals else _next(rest, key)
        elif not dashed and len(plain) < len(words):
            plain.append(argument)
        else:
            raise UsageError(_refusal(argument, key, [*options, *flags]))
    return Arguments(tuple(plain), given, frozenset(raised))


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"{name} is '{text}', which is not a whole number.")
    return int(text)


def _next(rest: "Iterable[str]", key: str) -> str:
    for argument in rest:
        return argument
    raise UsageError(f"--{key} needs a value.")


def _refusal(argument: str, key: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "`--help` says what this command takes."
    return f"'{argument}' is not something this command takes: {hint}"
