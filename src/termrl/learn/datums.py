"""Segments as the trainer's datums: targets shifted by one, weights on sampled tokens only.

The ids and logprobs are those the sampler returned. Position i of a datum predicts token i + 1 of its
segment, so what was sampled at i + 1 carries its logprob and advantage at i.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tinker
from tinker import TensorData

from termrl.policy.transcript import Segment, Turn, segments_of


@dataclass(frozen=True, slots=True)
class Lesson:
    """One segment to learn from, as arrays over its positions, until it is sent as a datum."""

    inputs_T: np.ndarray
    targets_T: np.ndarray
    mask_T: np.ndarray
    logprobs_T: np.ndarray
    advantages_T: np.ndarray

    @property
    def length(self) -> int:
        return len(self.inputs_T)

    def with_advantages(self, advantages_T: np.ndarray) -> "Lesson":
        return replace(self, advantages_T=advantages_T.astype(np.float32))

    def with_logprobs(self, logprobs_T: np.ndarray) -> "Lesson":
        return replace(self, logprobs_T=np.where(self.mask_T, logprobs_T, 0).astype(np.float32))

    def datum(self) -> tinker.Datum:
        """A datum for importance_sampling, ppo and their kin."""
        return self._datum(logprobs=self.logprobs_T, advantages=self.advantages_T)

    def weighted(self, weights_T: np.ndarray) -> tinker.Datum:
        """A datum for cross_entropy with these weights."""
        return self._datum(weights=weights_T.astype(np.float32))

    def _datum(self, **inputs: np.ndarray) -> tinker.Datum:
        return tinker.Datum(
            model_input=tinker.ModelInput.from_ints(self.inputs_T.tolist()),
            loss_fn_inputs={
                "target_tokens": TensorData.from_numpy(self.targets_T),
                **{name: TensorData.from_numpy(values) for name, values in inputs.items()},
            },
        )


def lesson_of(segment: Segment, advantage: float) -> Lesson:
    mask = segment.mask[1:]
    return Lesson(
        inputs_T=segment.ids[:-1],
        targets_T=segment.ids[1:].astype(np.int64),
        mask_T=mask,
        logprobs_T=segment.logprobs[1:].astype(np.float32),
        advantages_T=mask * np.float32(advantage),
    )


def rollout_lessons(turns: Sequence[Turn], advantage: float) -> list[Lesson]:
    """One lesson a segment; where nothing was sampled after the first token there is nothing to teach."""
    return [lesson_of(segment, advantage) for segment in segments_of(turns) if segment.mask[1:].any()]


def supervised_datum(segment: Segment) -> tinker.Datum:
    """A datum for cross_entropy: what was said is learned, what was seen is not."""
    lesson = lesson_of(segment, 0.0)
    return lesson.weighted(lesson.mask_T)
