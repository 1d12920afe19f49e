"""The answer to a request to sample: sequences, and what was asked about prompt and sampled positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from termrl.engine.sequences import Answer

EMPTY_LOGPROB = -99999.0
"""What the protocol writes where a position has no top tokens."""

Top = tuple[np.ndarray, np.ndarray]
"""Token ids and logprobs, [positions, k]."""


@dataclass(frozen=True)
class Sampled:
    answers: list[Answer]
    prompt_logprobs: np.ndarray | None = None
    cached_tokens: int = 0
    """Tokens of the prompt whose keys and values were held from before."""
    topk_prompt: Top | None = None
    topk_samples: list[Top] | None = None
    targets: np.ndarray | None = None
    sparse: tuple[np.ndarray, np.ndarray] | None = None
    drawn: Top | None = None


def with_first_empty(ids: np.ndarray, logprobs: np.ndarray, skip: int) -> Top:
    """Rows for every position of a prompt: none for the first, nor for those before the last wanted ones."""
    ids = np.concatenate([np.zeros((1, ids.shape[1]), np.int32), ids])
    logprobs = np.concatenate([np.full((1, logprobs.shape[1]), EMPTY_LOGPROB, np.float32), logprobs])
    ids[:skip], logprobs[:skip] = 0, EMPTY_LOGPROB
    return ids, logprobs
