"""Where the figures of each step go for machines: one JSON object a line, always.

The store is the truth. A run that goes on writes the file anew from it, so that no step is missing or
there twice, whatever a crash left.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from termrl.errors import StorageError


class MetricSink(Protocol):
    def log(self, step: int, metrics: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class MetricsFile:
    """`metrics.jsonl`: the steps already in the store, then each new one as it comes."""

    def __init__(self, path: Path, stored_steps: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        self._path = path
        try:
            fresh = path.with_suffix(".part")
            fresh.write_text("".join(_line(step, metrics) for step, metrics in (stored_steps or {}).items()))
            os.replace(fresh, path)
            self._file = path.open("a")
        except OSError as error:
            raise self._failed(error) from error

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        try:
            self._file.write(_line(step, metrics))
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        self._file.close()

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(
            f"The metrics could not be written to {self._path} ({error.strerror}); the run itself is intact: "
            "make room and run the same command again."
        )


def _line(step: int, metrics: Mapping[str, Any]) -> str:
    return json.dumps({"step": step, **metrics}) + "\n"
