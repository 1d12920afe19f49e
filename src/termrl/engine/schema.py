"""The SDK's protobuf schema, and nothing else of the SDK: importing all of it would cost a second."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

__all__ = ["PROTOBUF", "pb"]

if TYPE_CHECKING:
    from tinker.proto import tinker_public_pb2 as pb
else:
    _place = Path(importlib.util.find_spec("tinker").submodule_search_locations[0])
    _spec = importlib.util.spec_from_file_location(
        "termrl.engine._tinker_public_pb2", _place / "proto" / "tinker_public_pb2.py"
    )
    pb = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(pb)

PROTOBUF = "application/x-protobuf"
