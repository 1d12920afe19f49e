"""Many rollouts at a time, but no more than fit; what infrastructure broke is tried again.

A rollout waits for a place, runs, and, when something other than the policy ended it, waits a little
and runs again with the same seed. What still fails is handed back under its outcome's name, to be
excluded and counted. One bad rollout never disturbs another.
"""

import asyncio
from dataclasses import replace

from termrl.policy.sampler import Sampler
from termrl.rollout.gate import at_the_gate
from termrl.rollout.record import Rollout
from termrl.rollout.runner import RolloutRunner, Task


class RolloutPool:
    def __init__(
        self,
        runner: RolloutRunner,
        *,
        concurrency: int,
        retries: int = 2,
        backoff_seconds: float = 1.0,
        prewarm: int = 0,
    ) -> None:
        """`prewarm` is how many sandboxes more than agents may be booted, for the rollouts that come next."""
        if concurrency < 1 or retries < 0:
            raise ValueError("a pool of rollouts needs at least one place and no less than zero retries")
        self._runner = runner
        self._agents = asyncio.Semaphore(concurrency) if prewarm else None
        self._places = asyncio.Semaphore(concurrency + prewarm)
        self._retries = retries
        self._backoff_seconds = backoff_seconds
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """How many rollouts are running now, each with its sandbox."""
        return self._in_flight

    async def run(self, task: Task, sampler: Sampler, *, seed: int) -> Rollout:
        """The rollout of one attempt, once there is a place for it."""
        attempt = 0
        while True:
            with at_the_gate(self._agents):
                rollout = await self._run_once(task, sampler, seed)
            if rollout.outcome.scored or attempt >= self._retries:
                return _with_attempts(rollout, attempt + 1)
            await asyncio.sleep(self._backoff_seconds * 2**attempt)
            attempt += 1

    async def _run_once(self, task: Task, sampler: Sampler, seed: int) -> Rollout:
        async with self._places:
            self._in_flight += 1
            try:
                return await self._runner.run(task, sampler, seed=seed)
            finally:
                self._in_flight -= 1


def _with_attempts(rollout: Rollout, attempts: int) -> Rollout:
    return rollout if attempts == 1 else replace(rollout, tags={**rollout.tags, "attempts": str(attempts)})
