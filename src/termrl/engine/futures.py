"""Results that are not there yet: every long request gets an id under which its answer is fetched later.

A submission that comes twice (the SDK repeats one whose answer it did not see) is found again by its key and
not done twice. Answers are kept for a while after they were fetched, because the fetch may be repeated too.
All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Hashable
from dataclasses import dataclass, field

KEEP_FETCHED_SECONDS = 120.0
KEEP_UNFETCHED_SECONDS = 6 * 3600.0


@dataclass(frozen=True)
class Result:
    body: bytes
    content_type: str = "application/json"


@dataclass
class Pending:
    request_id: str
    key: Hashable
    done: asyncio.Event = field(default_factory=asyncio.Event)
    result: Result | None = None
    cancelled: bool = False
    expires: float = float("inf")


class Futures:
    def __init__(self) -> None:
        self._by_id: dict[str, Pending] = {}
        self._by_key: dict[Hashable, Pending] = {}
        self._next_sweep = 0.0

    def submit(self, key: Hashable | None) -> tuple[Pending, bool]:
        """The entry for a submission, and whether it is new."""
        self._sweep()
        if key is not None and key in self._by_key:
            return self._by_key[key], False
        request_id = uuid.uuid4().hex
        pending = Pending(request_id, key if key is not None else request_id)
        self._by_id[request_id] = pending
        self._by_key[pending.key] = pending
        return pending, True

    def resolve(self, pending: Pending, result: Result) -> None:
        pending.result = result
        pending.expires = time.monotonic() + KEEP_UNFETCHED_SECONDS
        pending.done.set()

    async def fetch(self, request_id: str, timeout: float) -> Result | None:
        """The result, or None if it is still not there after `timeout`; KeyError for an unknown id."""
        pending = self._by_id[request_id]
        try:
            async with asyncio.timeout(timeout):
                await pending.done.wait()
        except TimeoutError:
            return None
        pending.expires = time.monotonic() + KEEP_FETCHED_SECONDS
        return pending.result

    def cancel(self, request_id: str) -> None:
        """Nobody waits for this any more; whoever computes it may stop."""
        pending = self._by_id.get(request_id)
        if pending is not None and not pending.done.is_set():
            pending.cancelled = True
            self._forget(pending)

    def _forget(self, pending: Pending) -> None:
        self._by_id.pop(pending.request_id, None)
        self._by_key.pop(pending.key, None)

    def _sweep(self) -> None:
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + 10
            for pending in [entry for entry in self._by_id.values() if entry.expires < now]:
                self._forget(pending)
