"""The values of settings: how they are written, read and named to a person."""

import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal


def show_value(value: Any) -> str:
    """A value the way it is typed."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple() | list():
            return ",".join(map(str, value))
        case Mapping():
            return json.dumps(dict(value))
        case _:
            return str(value)


def parse_value(kind: Any, value: Any) -> Any:
    """A typed or written value as `kind`; ValueError where it is not one."""
    arguments = typing.get_args(kind)
    if types.NoneType in arguments:
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null", "")):
            return None
        return parse_value(_without_none(kind), value)
    if typing.get_origin(kind) is Literal:
        if value not in arguments:
            raise ValueError
        return value
    if typing.get_origin(kind) is tuple:
        return _parse_list(value)
    if is_mapping(kind):
        return _parse_mapping(value)
    if kind is str:
        if not isinstance(value, str):
            raise ValueError
        return str(Path(value).expanduser()) if value.startswith("~") else value
    if kind is bool:
        return _parse_bool(value)
    if isinstance(value, bool):
        raise ValueError
    if kind is int:
        number = value if isinstance(value, int) else float(str(value).replace("_", ""))
        if number != int(number):
            raise ValueError
        return int(number)
    if kind is float:
        number = float(value)
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError
        return number
    raise TypeError(f"a setting has the type {kind}, which no reader knows")


def _parse_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    match str(value).lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise ValueError


def _parse_list(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = json.loads(value) if value.startswith("[") else [part.strip() for part in value.split(",")]
    if not all(isinstance(part, str) and part for part in value):
        raise ValueError
    return tuple(value)


def is_mapping(kind: Any) -> bool:
    """Whether a setting is a table whose keys are the user's own."""
    return typing.get_origin(kind) is Mapping


def _parse_mapping(value: Any) -> dict[str, float | str]:
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, Mapping):
        raise ValueError
    return {str(key): _number_or_text(entry) for key, entry in value.items()}


def _number_or_text(value: Any) -> float | str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError
    try:
        return float(value)
    except ValueError:
        return str(value)


def _without_none(kind: Any) -> Any:
    (rest,) = (argument for argument in typing.get_args(kind) if argument is not types.NoneType)
    return rest


def expected(kind: Any) -> str:
    """A type as a person would say it."""
    if types.NoneType in typing.get_args(kind):
        return f"{expected(_without_none(kind))} or none"
    if typing.get_origin(kind) is Literal:
        return " or ".join(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "a list of names"
    if is_mapping(kind):
        return "a table of names and values"
    return {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind]
