"""task.toml, read once and usable in two ways.

`TaskToml` is Harbor's own model of the file, so old spellings (`memory`, `storage`, `allow_internet`,
`version`) arrive under their present names. It can also be read as the plain table it was written as:
`config["agent"]["timeout_sec"]`, `config.get("metadata")`.
"""

import re
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harbor.models.task.config import TaskConfig
from pydantic import PrivateAttr, ValidationError

from termrl.tasks.errors import MalformedTaskConfigError, MissingTaskConfigError


class TaskToml(TaskConfig):
    """Harbor's typed settings of a task, and the table they were read from."""

    _table: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of_table(cls, table: dict[str, Any]) -> "TaskToml":
        with warnings.catch_warnings():
            # Old spellings are welcome; whoever runs the task has not written it.
            warnings.simplefilter("ignore", DeprecationWarning)
            # Harbor takes old spellings out of what it is given.
            config = cls.model_validate(_copy(table))
        config._table = table
        return config

    def __getitem__(self, key: str) -> Any:
        return self._table[key]

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def get(self, key: str, default: Any = None) -> Any:
        return self._table.get(key, default)

    def keys(self) -> Iterator[str]:
        return iter(self._table)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list) else value


def read_task_toml(path: Path) -> TaskToml:
    """The settings in `path`; raises a `TaskError` that says the line where one is wrong."""
    if not path.is_file():
        raise MissingTaskConfigError(f"{path.parent} has no task.toml, so it is not a Harbor task.")
    try:
        text = path.read_bytes().decode()
        return TaskToml.of_table(tomllib.loads(text))
    except UnicodeDecodeError as error:
        raise MalformedTaskConfigError(f"{path} is not UTF-8 text: {error.reason}.") from error
    except tomllib.TOMLDecodeError as error:
        raise MalformedTaskConfigError(f"{path} is not valid TOML: {error}.") from error
    except ValidationError as error:
        raise MalformedTaskConfigError(_refusal(path, text, error)) from error


def _refusal(path: Path, text: str, error: ValidationError) -> str:
    first = error.errors()[0]
    keys = [str(part) for part in first["loc"]]
    line = _line_of(text, keys)
    where = f"{path}, line {line}," if line else str(path)
    setting = f"{'.'.join(keys)}: " if keys else ""
    reason = " ".join(str(first["msg"]).split()).rstrip(".")
    return f"{where} is not a valid task.toml: {setting}{reason}."


def _line_of(text: str, keys: list[str]) -> int | None:
    """The line that sets `table.key`; None where the key is missing or written in another form."""
    if not keys:
        return None
    table, wanted = "", ".".join(keys[:-1])
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            table = header[1]
        elif table == wanted and re.match(rf"\s*[\"']?{re.escape(keys[-1])}[\"']?\s*=", line):
            return number
    return None
