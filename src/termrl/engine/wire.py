"""What comes over the wire, read into the engine's own records: data to train on, prompts.

What cannot be read raises `MalformedRequest` (HTTP 400). What can be read but makes no sense to this engine
raises a `UserError`, which the caller gets as the failure of its request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from termrl.engine.fields import MalformedRequest
from termrl.engine.losses import Loss, find_loss
from termrl.engine.rows import Datum
from termrl.engine.schema import pb
from termrl.engine.trainer import DatumError
from termrl.errors import UserError

MAX_TARGETS = 1024
"""Targets of one position, for cross_entropy against a distribution."""


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

    def decode_data(self, recorded: Mapping[str, np.ndarray]) -> list[Datum]:
        """`recorded` has the logprobs of sampled sequences that data may refer to by their ids."""
        loss = find_loss(self.loss_fn)
        return [_decode_datum(datum, self.loss_fn, loss, recorded) for datum in self.message.data]


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


def _decode_datum(datum: pb.Datum, loss_fn: str, loss: Loss, recorded: Mapping[str, np.ndarray]) -> Datum:
    pieces = []
    for chunk in datum.model_input:
        if chunk.WhichOneof("chunk") != "encoded_text":
            raise DatumError("A datum holds images or audio; this engine trains on text tokens only.")
        pieces.append(_array(chunk.encoded_text.tokens, np.dtype(np.int32)))
    tokens = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
    length = len(tokens)
    targets = _tensor(datum, "target_tokens", loss_fn).astype(np.int64)
    several = loss_fn == "cross_entropy" and targets.ndim == 2 and 1 <= targets.shape[1] <= MAX_TARGETS
    if len(targets) != length or not (targets.ndim == 1 or several):
        raise DatumError(
            f"'target_tokens' must have one value for each of the {length} input tokens, "
            f"not shape {list(targets.shape)}; cross_entropy may have up to {MAX_TARGETS}."
        )

    def column(name: str) -> np.ndarray:
        found = _tensor(datum, name, loss_fn).astype(np.float32)
        if found.shape != targets.shape:
            raise DatumError(
                f"{name!r} must have one value for each of the target tokens, "
                f"shape {list(targets.shape)}, not {list(found.shape)}."
            )
        return found

    def optional(name: str, wanted: bool) -> np.ndarray | None:
        return column(name) if wanted and name in datum.loss_fn_inputs else None

    by_reference = "logprobs" not in datum.loss_fn_inputs and len(datum.loss_fn_input_spans) > 0
    columns = [
        _recorded_logprobs(datum, recorded, length) if name == "logprobs" and by_reference else column(name)
        for name in loss.inputs
    ]
    sampled = columns[0] if len(columns) > 1 else np.zeros(length, np.float32)
    return Datum(
        tokens,
        targets,
        columns[-1],
        sampled,
        low=optional("clip_low_threshold", "clip_low_threshold" in loss.settings),
        high=optional("clip_high_threshold", "clip_high_threshold" in loss.settings),
        mask=optional("sequence_ratio_mask", loss.takes_mask),
    )


def _recorded_logprobs(datum: pb.Datum, recorded: Mapping[str, np.ndarray], length: int) -> np.ndarray:
    """The sampler's logprobs of the sequences that a datum says its tokens are from; 0 for prompt tokens."""
    pieces = []
    covered = sum(
        span.prompt_tokens.length + span.sampled_tokens.length for span in datum.loss_fn_input_spans
    )
    if covered != length:
        raise DatumError(f"A datum's loss_fn_input_spans cover {covered} tokens of {length}.")
    for span in datum.loss_fn_input_spans:
        if not span.HasField("sampled_tokens"):
            pieces.append(np.zeros(span.prompt_tokens.length, np.float32))
            continue
        source = span.sampled_tokens
        found = recorded.get(source.sequence_id)
        if found is None or source.offset < 0 or source.offset + source.length > len(found):
            raise DatumError(
                f"There is no recording of {source.length} tokens from {source.offset} on in the sequence "
                f"{source.sequence_id!r}; sample with record_stability_info, or give 'logprobs'."
            )
        pieces.append(found[source.offset : source.offset + source.length])
    return np.concatenate(pieces)


def _tensor(datum: pb.Datum, name: str, loss_fn: str) -> np.ndarray:
    if name not in datum.loss_fn_inputs:
        raise DatumError(f"The loss {loss_fn!r} needs {name!r} in every datum's loss_fn_inputs.")
    tensor = datum.loss_fn_inputs[name]
    dtypes: dict[int, np.dtype[Any]] = {
        pb.DTYPE_FLOAT32: np.dtype(np.float32),
        pb.DTYPE_INT64: np.dtype(np.int64),
    }
    if tensor.dtype not in dtypes:
        raise DatumError(f"{name!r} must be a float32 or int64 tensor.")
    shape = tuple(tensor.shape)
    if tensor.WhichOneof("encoding") == "sparse_csr":
        return _from_csr(tensor.sparse_csr, dtypes[tensor.dtype], shape, name)
    values = _array(tensor.dense, dtypes[tensor.dtype])
    if shape and (min(shape) < 0 or math.prod(shape) != values.size):
        raise DatumError(f"{name!r} has {values.size} values, but its shape says {list(shape)}.")
    return values.reshape(shape) if shape else values


def _from_csr(csr: pb.SparseCsr, dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> np.ndarray:
    """The dense array of a matrix in compressed rows."""
    ends = _array(csr.crow_indices, np.dtype(np.int64))
    columns = _array(csr.col_indices, np.dtype(np.int64))
    values = _array(csr.values, dtype)
    counts = np.diff(ends)
    fits = len(shape) == 2 and min(shape) >= 0 and len(ends) == shape[0] + 1 and len(columns) == len(values)
    if not fits or shape[1] > MAX_TARGETS or ends[0] != 0 or ends[-1] != len(values) or (counts < 0).any():
        raise DatumError(f"{name!r} is a sparse tensor whose rows do not fit its shape {list(shape)}.")
    if len(columns) and not (columns.min() >= 0 and columns.max() < shape[1]):
        raise DatumError(f"{name!r} is a sparse tensor with columns outside its shape {list(shape)}.")
    dense = np.zeros(shape, dtype)
    dense[np.repeat(np.arange(shape[0]), counts), columns] = values
    return dense


def _array(raw: bytes, dtype: np.dtype[Any]) -> np.ndarray:
    if len(raw) % dtype.itemsize:
        raise DatumError(f"A tensor's {len(raw)} bytes are no whole number of {dtype} values.")
    return np.frombuffer(raw, dtype)


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
