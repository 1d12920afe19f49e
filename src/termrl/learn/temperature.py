"""At a temperature other than 1: whose logprobs stand in the ratio.

The learner's logprobs are those of the model at temperature 1. Some servers return sampled logprobs of that
distribution, some of the tempered one. One answer, compared with the server's own logprobs for the same
tokens, tells; where they differ, the learner computes the old logprobs itself before the first substep.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tinker

TOLERANCE = 1e-2
PROBE_TOKENS = 16
SERVER, LEARNER = "server", "learner"
"""Whose logprobs are the old ones of the ratio."""


async def old_logprobs(client: tinker.SamplingClient, prompt: Sequence[int], temperature: float) -> str:
    """`SERVER` where its sampled logprobs compare with the learner's, else `LEARNER`."""
    if temperature == 1:
        return SERVER
    params = tinker.SamplingParams(max_tokens=PROBE_TOKENS, temperature=temperature, seed=0)
    asked = tinker.ModelInput.from_ints(list(prompt))
    answer = (await client.sample_async(asked, num_samples=1, sampling_params=params)).sequences[0]
    whole = tinker.ModelInput.from_ints([*prompt, *answer.tokens])
    plain: Any = (await client.compute_logprobs_async(whole))[len(prompt) :]
    gap = np.abs(np.asarray(answer.logprobs, np.float64) - np.asarray(plain, np.float64))
    return SERVER if float(gap.mean()) < TOLERANCE else LEARNER
