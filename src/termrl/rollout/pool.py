"""Many rollouts at a time, but no more than fit; what infrastructure broke is tried again.

A rollout waits for a place, runs, and, when something other than the policy ended it, waits a little
and runs again with the same seed. What still fails is handed back under its outcome's name, to be
excluded and counted. One bad rollout never disturbs another.
"""

import asyncio
import time
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
        self._draining = False
        self._rest = asyncio.Event()
        self._rest.set()
        self.sandbox_seconds = 0.0
        """How long rollouts have held their sandboxes, all of them together, retries too."""

    def drain(self) -> None:
        """Rollouts that run may end; none begins any more, those that wait do so until they are cancelled."""
        self._draining = True

    async def at_rest(self) -> None:
        """Returns when no rollout is running."""
        await self._rest.wait()

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
            if self._draining:
                await asyncio.Event().wait()
            self._in_flight += 1
            self._rest.clear()
            began = time.monotonic()
            try:
                return await self._runner.run(task, sampler, seed=seed)
            finally:
                self._in_flight -= 1
                if not self._in_flight:
                    self._rest.set()
                self.sandbox_seconds += time.monotonic() - began


def _with_attempts(rollout: Rollout, attempts: int) -> Rollout:
    return rollout if attempts == 1 else replace(rollout, tags={**rollout.tags, "attempts": str(attempts)})
