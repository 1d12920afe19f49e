"""Segments as the trainer's datums: targets shifted by one, weights on sampled tokens only.

The ids and logprobs are those the sampler returned. Position i of a datum predicts token i + 1 of its
segment, so what was sampled at i + 1 carries its logprob and advantage at i.
"""

from collections.abc import Sequence

import numpy as np
import tinker
from tinker import TensorData

from termrl.policy.transcript import Segment, Turn, segments_of


def policy_gradient_datum(segment: Segment, advantage: float) -> tinker.Datum:
    """A datum for importance_sampling, ppo and their kin."""
    mask = np.asarray(segment.mask[1:], np.float32)
    return _datum(
        segment,
        logprobs=np.asarray(segment.logprobs[1:], np.float32),
        advantages=mask * np.float32(advantage),
    )


def supervised_datum(segment: Segment) -> tinker.Datum:
    """A datum for cross_entropy: what was said is learned, what was seen is not."""
    return _datum(segment, weights=np.asarray(segment.mask[1:], np.float32))


def rollout_datums(turns: Sequence[Turn], advantage: float) -> list[tinker.Datum]:
    """One datum a segment; where nothing was sampled after the first token there is nothing to teach."""
    return [
        policy_gradient_datum(segment, advantage) for segment in segments_of(turns) if any(segment.mask[1:])
    ]


def _datum(segment: Segment, **inputs: np.ndarray) -> tinker.Datum:
    targets = np.asarray(segment.tokens[1:], np.int64)
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(list(segment.tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": TensorData.from_numpy(targets),
            **{name: TensorData.from_numpy(values) for name, values in inputs.items()},
        },
    )
