"""The newest weights to sample from, handed to rollouts as they begin.

A rollout keeps the weights it began with, or, where partial rollouts are asked for, goes on with the newest
at each turn. The version of each turn is that of the weights that sampled it. Servers keep the weights of
unnamed samplers for a while only, so a rollout that outlasts many versions moves on to the newest.
"""

from collections.abc import Sequence

from termrl.policy.sampler import SampledAnswer, Sampler

KEPT_VERSIONS = 8


class Feed:
    """A sampler of whatever is newest; each attempt gets one of its own."""

    def __init__(self, newest: Sampler, *, follow: bool) -> None:
        self.newest = newest
        self.follow = follow

    @property
    def policy_version(self) -> int:
        return self.newest.policy_version

    def for_attempt(self) -> "AttemptSampler":
        return AttemptSampler(self)

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        return await self.newest.sample(prompt, max_tokens, seed)


class AttemptSampler:
    """One attempt's sampler. `policy_version` is of the weights that the last call was sampled with."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._using = feed.newest

    @property
    def policy_version(self) -> int:
        return self._using.policy_version

    def for_attempt(self) -> "AttemptSampler":
        return self

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        newest = self._feed.newest
        if self._feed.follow or newest.policy_version - self._using.policy_version > KEPT_VERSIONS:
            self._using = newest
        return await self._using.sample(prompt, max_tokens, seed)
