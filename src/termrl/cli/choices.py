"""Options whose value is one of a few words."""

from collections.abc import Mapping, Sequence
from typing import Literal, cast

from termrl.cli.arguments import UsageError


def choice(options: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    """The value of an option, the first of `known` unless given."""
    value = options.get(name, known[0])
    if value not in known:
        raise UsageError(f"{name} is '{value}': it is one of {', '.join(known)}.")
    return value


def on_bad_task(options: Mapping[str, str]) -> Literal["error", "skip"]:
    """Whether a task that cannot be used stops the command or is left out."""
    return cast(Literal["error", "skip"], choice(options, "on_bad_task", ("error", "skip")))
