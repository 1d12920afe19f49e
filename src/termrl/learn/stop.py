"""Ending a run before its time, cleanly: by Ctrl-C, or because a limit was reached.

Whoever wants the run to end says why, once. An interrupt lets the rollouts in flight end and be stored; a
limit does not. Work that is guarded ends then by raising the reason; the loop itself looks and checkpoints.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

from termrl.errors import Interrupted
from termrl.rollout.pool import RolloutPool


class Stop:
    def __init__(self) -> None:
        self.reason: Exception | None = None
        self._asked = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def asked(self) -> bool:
        """Nothing new is to be begun."""
        return self.reason is not None

    def ask(self, reason: Exception) -> None:
        """The run is to end; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._asked.set()

    @asynccontextmanager
    async def watching(self, pool: RolloutPool) -> AsyncIterator[None]:
        """Has the pool begin nothing new once the run is to end, and knows when it is at rest."""

        async def watch() -> None:
            await self._asked.wait()
            pool.drain()
            if isinstance(self.reason, Interrupted):
                await pool.at_rest()
            self._over.set()

        watcher = asyncio.create_task(watch())
        try:
            yield
        finally:
            watcher.cancel()

    async def guard[Result](self, work: Coroutine[Any, Any, Result]) -> Result:
        """The work's result; or, once the run is to end and nothing is in flight, the reason, raised."""
        done, result = await self._first(work)
        if not done:
            assert self.reason is not None
            raise self.reason
        return cast(Result, result)

    async def unless_over[Result](self, work: Coroutine[Any, Any, Result]) -> Result | None:
        """The work's result; or None, once the run is to end and nothing is in flight."""
        return (await self._first(work))[1]

    async def _first[Result](self, work: Coroutine[Any, Any, Result]) -> tuple[bool, Result | None]:
        task = asyncio.create_task(work)
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
            return (True, task.result()) if task.done() else (False, None)
        finally:
            task.cancel()
            over.cancel()
            await asyncio.gather(task, over, return_exceptions=True)
