"""A JSON object as a request brings it, its fields read with their types checked."""

from __future__ import annotations

from typing import Any


class MalformedRequest(Exception):
    """A request's body is not what the protocol says."""


class Fields:
    """A JSON object whose fields are read with their types checked."""

    def __init__(self, raw: Any) -> None:
        if not isinstance(raw, dict):
            raise MalformedRequest("The body must be a JSON object.")
        self._raw: dict[str, Any] = raw

    def text(self, name: str) -> str:
        found = self._typed(name, str)
        if found is None:
            raise MalformedRequest(f"The field {name!r} is missing.")
        return str(found)

    def optional_text(self, name: str) -> str | None:
        found: str | None = self._typed(name, str)
        return found

    def integer(self, name: str, default: int | None = None) -> int:
        found = self._typed(name, int)
        if found is None:
            found = default
        if found is None or isinstance(found, bool) or abs(found) >= 2**63:
            raise MalformedRequest(f"The field {name!r} must be an integer.")
        return int(found)

    def number(self, name: str, default: float) -> float:
        found = self._typed(name, (int, float))
        return default if found is None else float(found)

    def flag(self, name: str, default: bool = False) -> bool:
        found = self._typed(name, bool)
        return default if found is None else bool(found)

    def integers(self, name: str) -> list[int]:
        found = self._typed(name, list)
        if found is None or not all(type(value) is int and abs(value) < 2**63 for value in found):
            raise MalformedRequest(f"The field {name!r} must be a list of integers.")
        return list(found)

    def object(self, name: str) -> Fields:
        return Fields(self._typed(name, dict) or {})

    def all(self) -> dict[str, Any]:
        return dict(self._raw)

    def raw(self, name: str) -> Any:
        return self._raw.get(name)

    def _typed(self, name: str, kind: type | tuple[type, ...]) -> Any:
        found = self._raw.get(name)
        if found is not None and not isinstance(found, kind):
            raise MalformedRequest(f"The field {name!r} has the wrong type.")
        return found
