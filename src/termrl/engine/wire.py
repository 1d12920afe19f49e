"""The bytes on the wire: the SDK's protobuf messages and JSON fields, to and from the engine's own records.

What cannot be read raises `MalformedRequest` (HTTP 400). What can be read but makes no sense to this engine
raises a `UserError`, which the caller gets as the failure of its request.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from termrl.engine.losses import find_loss
from termrl.engine.sampler import Answer
from termrl.engine.trainer import Datum, DatumError, PassResult
from termrl.errors import UserError

if TYPE_CHECKING:
    from tinker.proto import tinker_public_pb2 as pb
else:
    # The schema alone: importing the SDK's package would add a second to the engine's start.
    _place = Path(importlib.util.find_spec("tinker").submodule_search_locations[0])
    _spec = importlib.util.spec_from_file_location(
        "termrl.engine._tinker_public_pb2", _place / "proto" / "tinker_public_pb2.py"
    )
    pb = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(pb)

PROTOBUF = "application/x-protobuf"


class MalformedRequest(Exception):
    """A request's body is not what the protocol says."""


class PromptError(UserError):
    """A prompt holds something other than text tokens."""


@dataclass(frozen=True)
class PassRequest:
    """forward or forward_backward; the data are decoded later, by `decode_data`."""

    model_id: str
    seq_id: int
    loss_fn: str
    settings: dict[str, float | str]
    forward_only: bool
    message: pb.ForwardBackwardRequest

    def decode_data(self) -> list[Datum]:
        needed = find_loss(self.loss_fn).inputs
        return [_decode_datum(datum, self.loss_fn, needed) for datum in self.message.data]


def read_pass_request(body: bytes) -> PassRequest:
    message = pb.ForwardBackwardRequest()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise MalformedRequest(f"The body is not a ForwardBackwardRequest: {error}.") from None
    if not message.model_id or not message.data:
        raise MalformedRequest("A ForwardBackwardRequest needs a model_id and data.")
    settings: dict[str, float | str] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        settings[key] = value.text if value.WhichOneof("value") == "text" else value.number
    return PassRequest(
        message.model_id, message.seq_id, message.loss_fn, settings, message.forward_only, message
    )


def _decode_datum(datum: pb.Datum, loss_fn: str, needed: Sequence[str]) -> Datum:
    pieces = []
    for chunk in datum.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise DatumError("A datum holds images or audio; this engine trains on text tokens only.")
        pieces.append(_array(chunk.encoded_text.tokens, np.dtype(np.int32)))
    tokens = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
    targets = _tensor(datum, "target_tokens", loss_fn, len(tokens)).astype(np.int64)
    columns = [_tensor(datum, name, loss_fn, len(tokens)).astype(np.float32) for name in needed]
    weights = columns[-1]
    sampled = columns[0] if len(columns) > 1 else np.zeros(len(tokens), np.float32)
    return Datum(tokens, targets, weights, sampled)


def _tensor(datum: pb.Datum, name: str, loss_fn: str, length: int) -> np.ndarray:
    if name not in datum.loss_fn_inputs:
        raise DatumError(f"The loss {loss_fn!r} needs {name!r} in every datum's loss_fn_inputs.")
    tensor = datum.loss_fn_inputs[name]
    if tensor.WhichOneof("encoding") == "sparse_csr":
        raise DatumError(f"{name!r} is a sparse tensor; this engine takes dense ones.")
    dtypes: dict[int, np.dtype[Any]] = {
        pb.DTYPE_FLOAT32: np.dtype(np.float32),
        pb.DTYPE_INT64: np.dtype(np.int64),
    }
    if tensor.dtype not in dtypes:
        raise DatumError(f"{name!r} must be a float32 or int64 tensor.")
    values = _array(tensor.dense, dtypes[tensor.dtype])
    if values.shape != (length,) or list(tensor.shape) not in ([], [length]):
        raise DatumError(
            f"{name!r} must have one value for each of the {length} input tokens, "
            f"not shape {list(tensor.shape) or list(values.shape)}."
        )
    return values


def _array(raw: bytes, dtype: np.dtype[Any]) -> np.ndarray:
    if len(raw) % dtype.itemsize:
        raise DatumError(f"A tensor's {len(raw)} bytes are no whole number of {dtype} values.")
    return np.frombuffer(raw, dtype)


def write_pass_result(result: PassResult) -> bytes:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    message.metrics["loss:sum"] = result.loss
    record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(result.logprobs))
    for name, rows in (("logprobs", result.logprobs), ("elementwise_loss", result.costs)):
        ends = np.cumsum([0, *(row.size * 4 for row in rows)], dtype=np.int64)
        tensor = record.fields[name]
        tensor.data = b"".join(np.asarray(row, np.float32).tobytes() for row in rows)
        tensor.offsets = ends.tobytes()
        tensor.dtype = pb.DTYPE_FLOAT32
    return bytes(message.SerializeToString())


def write_sample_result(answers: Sequence[Answer], prompt_logprobs: np.ndarray | None) -> bytes:
    message = pb.SampleResponse()
    for answer in answers:
        message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if answer.stopped else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(answer.tokens, np.int32).tobytes(),
            logprobs=np.asarray(answer.logprobs, np.float32).tobytes(),
        )
    if prompt_logprobs is not None:
        message.prompt_logprobs = prompt_logprobs.astype(np.float32).tobytes()
    return bytes(message.SerializeToString())


def read_prompt(prompt: Mapping[str, Any]) -> np.ndarray:
    chunks = prompt.get("chunks")
    if not isinstance(chunks, list):
        raise MalformedRequest("A prompt needs a list of chunks.")
    tokens: list[int] = []
    for chunk in chunks:
        if not isinstance(chunk, dict):
            raise MalformedRequest("A prompt's chunk must be an object.")
        if chunk.get("type", "encoded_text") != "encoded_text":
            raise PromptError("A prompt holds images or audio; this engine reads text tokens only.")
        found = chunk.get("tokens")
        if not isinstance(found, list) or not all(type(token) is int for token in found):
            raise MalformedRequest("A text chunk needs a list of token ids.")
        tokens += found
    if any(not 0 <= token < 2**31 for token in tokens):
        raise PromptError("A prompt has token ids outside the vocabulary.")
    return np.asarray(tokens, np.int32)


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
        if found is None or isinstance(found, bool):
            raise MalformedRequest(f"The field {name!r} must be an integer.")
        return int(found)

    def number(self, name: str, default: float) -> float:
        found = self._typed(name, (int, float))
        return default if found is None else float(found)

    def flag(self, name: str, default: bool = False) -> bool:
        found = self._typed(name, bool)
        return default if found is None else bool(found)

    def object(self, name: str) -> Fields:
        return Fields(self._typed(name, dict) or {})

    def raw(self, name: str) -> Any:
        return self._raw.get(name)

    def _typed(self, name: str, kind: type | tuple[type, ...]) -> Any:
        found = self._raw.get(name)
        if found is not None and not isinstance(found, kind):
            raise MalformedRequest(f"The field {name!r} has the wrong type.")
        return found
