"""Writing keys into .env: what else is in the file stays as it is, and only its owner may read it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from termrl.errors import UserError

_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=")


class DotenvError(UserError):
    """The file of keys could not be read or written."""


def write_keys(path: Path, values: Mapping[str, str]) -> None:
    """Sets these variables in the file, which appears whole and with mode 600."""
    try:
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if not ((match := _LINE.match(line)) and match[1] in values)]
        kept += [f"{name}={_quoted(value)}" for name, value in values.items()]
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write("\n".join(kept) + "\n")
        draft.replace(path)
    except OSError as error:
        raise DotenvError(f"{path} could not be written: {error.strerror or error}.") from error


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
