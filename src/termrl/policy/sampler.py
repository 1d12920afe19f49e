"""Asking the policy, at one weight version, for one answer.

A sampler returns what the model sampled: ids, logprobs, why it stopped. Failures are of two kinds: the
service could not answer (`ModelUnavailableError`: infrastructure, worth retrying) or it refused what it
was asked (`SamplingRefusedError`: a setting or a key is wrong, and every other call would fail too).
No time-out is set here: the SDK polls for as long as the service says it is working.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from termrl.errors import UserError

if TYPE_CHECKING:
    import tinker


class ModelUnavailableError(Exception):
    """The model service gave no answer. The rollout is excluded or tried again, never scored."""


class SamplingRefusedError(UserError):
    """The model service refused the request itself; trying again would not help."""


@dataclass(frozen=True, slots=True)
class SampledAnswer:
    """`stop_reason` is "stop" or "length"; `tokens` include the stop token when one was sampled."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: str
    seconds: float


class Sampler(Protocol):
    @property
    def policy_version(self) -> int: ...

    def for_attempt(self) -> "Sampler":
        """The sampler of one new attempt; one that keeps no state between calls is its own."""
        ...

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer: ...


class TinkerSampler:
    """A Tinker sampling client at one weight version, with the settings every call shares."""

    def __init__(
        self,
        client: "tinker.SamplingClient",
        *,
        policy_version: int,
        stop: Sequence[int],
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = -1,
    ) -> None:
        self._client = client
        self._policy_version = policy_version
        self._stop = list(stop)
        self._temperature = temperature
        self._top_p = top_p
        self._top_k = top_k

    @property
    def policy_version(self) -> int:
        return self._policy_version

    def for_attempt(self) -> "TinkerSampler":
        return self

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        import tinker

        params = tinker.SamplingParams(
            max_tokens=max_tokens,
            seed=seed,
            stop=self._stop,
            temperature=self._temperature,
            top_p=self._top_p,
            top_k=self._top_k,
        )
        started = time.monotonic()
        try:
            response = await self._client.sample_async(
                prompt=tinker.ModelInput.from_ints(list(prompt)), num_samples=1, sampling_params=params
            )
        except Exception as error:
            raise classify_failure(error) from error
        sequence = response.sequences[0]
        if sequence.logprobs is None or len(sequence.logprobs) != len(sequence.tokens):
            raise SamplingRefusedError(
                "the model service returned an answer without a logprob for each of its tokens; "
                "training needs them, so use a service that returns logprobs"
            )
        return SampledAnswer(
            tokens=tuple(sequence.tokens),
            logprobs=tuple(sequence.logprobs),
            stop_reason=str(sequence.stop_reason),
            seconds=time.monotonic() - started,
        )


_TRY_AGAIN = frozenset({408, 409, 410, 425, 429})


def classify_failure(error: Exception) -> ModelUnavailableError | SamplingRefusedError:
    """Whose fault a failed call is. What can't be told apart counts as the service's."""
    import tinker

    refused = False
    if isinstance(error, tinker.RequestFailedError):
        refused = error.category == "user"
    elif isinstance(error, tinker.APIStatusError):
        refused = 400 <= error.status_code < 500 and error.status_code not in _TRY_AGAIN
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    if refused:
        return SamplingRefusedError(f"the model service refused to sample: {first_line}")
    return ModelUnavailableError(f"the model service gave no answer ({type(error).__name__}): {first_line}")


def turn_seed(rollout_seed: int, call: int) -> int:
    """The seed of one model call: a function of the rollout's seed and the call's number only."""
    digest = hashlib.blake2b(f"{rollout_seed}:{call}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") & 0x7FFFFFFF
