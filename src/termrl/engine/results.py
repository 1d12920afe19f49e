"""The engine's results as the SDK's protobuf messages."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from termrl.engine.sampled import Sampled
from termrl.engine.schema import pb
from termrl.engine.trainer import PassResult


def write_pass_result(result: PassResult) -> bytes:
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord")
    message.metrics["loss:sum"] = result.loss
    pairs = zip(result.logprobs, result.costs, strict=True)
    # A record holds neighbours with the same number of targets a token.
    for trailing, neighbours in itertools.groupby(pairs, lambda pair: pair[0].shape[1:]):
        logprobs, costs = zip(*neighbours, strict=True)
        record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(logprobs))
        for name, rows in (("logprobs", logprobs), ("elementwise_loss", costs)):
            ends = np.cumsum([0, *(row.size * 4 for row in rows)], dtype=np.int64)
            tensor = record.fields[name]
            tensor.data = b"".join(np.asarray(row, np.float32).tobytes() for row in rows)
            tensor.offsets = ends.tobytes()
            tensor.dtype = pb.DTYPE_FLOAT32
            tensor.trailing_shape.extend(trailing)
    return bytes(message.SerializeToString())


def write_sample_result(sampled: Sampled) -> bytes:
    message = pb.SampleResponse()
    for index, answer in enumerate(sampled.answers):
        sequence = message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if answer.stopped else pb.STOP_REASON_LENGTH,
            tokens=np.asarray(answer.tokens, np.int32).tobytes(),
            logprobs=np.asarray(answer.logprobs, np.float32).tobytes(),
        )
        if sampled.topk_samples is not None:
            _write_topk(sequence.topk_sampled_logprobs, *sampled.topk_samples[index])
    message.prompt_cache_hit_tokens = sampled.cached_tokens
    if sampled.prompt_logprobs is not None:
        message.prompt_logprobs = sampled.prompt_logprobs.astype(np.float32).tobytes()
    if sampled.topk_prompt is not None:
        _write_topk(message.topk_prompt_logprobs, *sampled.topk_prompt)
    if sampled.targets is not None:
        _write_targets(message.target_prompt_logprobs, sampled.targets, sampled.sparse)
    if sampled.drawn is not None:
        ids, logprobs = sampled.drawn
        _write_dense(message.prompt_alt_tokens.tokens, ids.astype(np.int32), pb.DTYPE_INT32)
        _write_dense(message.prompt_alt_tokens.logprobs, logprobs.astype(np.float32), pb.DTYPE_FLOAT32)
    return bytes(message.SerializeToString())


def _write_topk(message: pb.TopkLogprobs, ids: np.ndarray, logprobs: np.ndarray) -> None:
    message.length, message.k = ids.shape
    message.token_ids = ids.astype(np.int32).tobytes()
    message.logprobs = logprobs.astype(np.float32).tobytes()


def _write_targets(
    message: pb.Tensor, logprobs: np.ndarray, sparse: tuple[np.ndarray, np.ndarray] | None
) -> None:
    """In the layout they were asked for in."""
    if sparse is None:
        _write_dense(message, logprobs.astype(np.float32), pb.DTYPE_FLOAT32)
        return
    ends, columns = sparse
    rows = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    message.dtype = pb.DTYPE_FLOAT32
    message.shape.extend(logprobs.shape)
    message.sparse_csr.values = logprobs[rows, columns].astype(np.float32).tobytes()
    message.sparse_csr.crow_indices = ends.tobytes()
    message.sparse_csr.col_indices = columns.tobytes()


def _write_dense(message: pb.Tensor, values: np.ndarray, dtype: Any) -> None:
    message.dtype = dtype
    message.shape.extend(values.shape)
    message.dense = values.tobytes()
