"""Runs the SDK's forward_backward_custom against an engine; needs torch, so it is run by hand.

    python scripts/check_custom_loss.py

The client has torch differentiate a loss of the logprobs and the engine train on that gradient. Checked
against the same gradient worked out on paper: after one step both trainees must have the
same logprobs to 1e-5.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TINKER_TELEMETRY", "0")

import numpy as np
import tinker
import torch
from tinker import types

from termrl.cache import cache_directory
from termrl.engine.process import start_engine

MODEL = "termrl/tiny"


def make_data() -> list[types.Datum]:
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, 300, size + 1).tolist() for size in (30, 60, 12)]
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(row[:-1]), loss_fn_inputs={"target_tokens": row[1:]}
        )
        for row in rows
    ]


def squares(data: list[types.Datum], logprobs: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    loss = sum(((value + 1.0) ** 2).sum() for value in logprobs)
    assert isinstance(loss, torch.Tensor)
    return loss, {"largest:mean": max(value.detach().max().item() for value in logprobs)}


async def logprobs_of(trainee: tinker.TrainingClient, data: list[types.Datum]) -> np.ndarray:
    weighted = [with_weights(datum, np.ones(datum.model_input.length)) for datum in data]
    result = await (await trainee.forward_async(weighted, "cross_entropy")).result_async()
    return np.concatenate([np.asarray(out["logprobs"].data) for out in result.loss_fn_outputs])


def with_weights(datum: types.Datum, weights: np.ndarray) -> types.Datum:
    inputs: dict[str, Any] = dict(datum.loss_fn_inputs) | {"weights": weights.astype(np.float32)}
    return types.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


async def step(trainee: tinker.TrainingClient) -> None:
    await (await trainee.optim_step_async(types.AdamParams(learning_rate=1e-3))).result_async()


async def check(service: tinker.ServiceClient) -> float:
    data = make_data()
    custom, by_hand = [
        await service.create_lora_training_client_async(MODEL, rank=8, seed=0) for _ in range(2)
    ]
    before = await logprobs_of(custom, data)
    found = await (await custom.forward_backward_custom_async(data, squares)).result_async()
    expected = float(((before + 1.0) ** 2).sum())
    assert abs(found.metrics["loss:sum"] / expected - 1) < 1e-4, found.metrics
    await step(custom)
    ends = np.cumsum([datum.model_input.length for datum in data])[:-1]
    slopes = np.split(-2.0 * (before + 1.0), ends)
    weighted = [with_weights(datum, slope) for datum, slope in zip(data, slopes, strict=True)]
    await (await by_hand.forward_backward_async(weighted, "cross_entropy")).result_async()
    await step(by_hand)
    after, other = await logprobs_of(custom, data), await logprobs_of(by_hand, data)
    assert np.abs(after - before).max() > 1e-3, "the step changed nothing"
    return float(np.abs(after - other).max())


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        started = start_engine(
            Path(place, "state"),
            models=[MODEL],
            log_path=Path(place, "log"),
            cache_dir=cache_directory() / "compiled",
        )
        async with started as handle:
            gap = await check(tinker.ServiceClient(base_url=handle.base_url, api_key=handle.api_key))
    print(f"forward_backward_custom and the gradient by hand train alike: logprobs within {gap:.1e}")
    if gap > 1e-5:
        sys.exit("They should be within 1e-5.")


if __name__ == "__main__":
    asyncio.run(main())
