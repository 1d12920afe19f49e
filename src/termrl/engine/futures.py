"""Results that are not there yet: every long request gets an id under which its answer is fetched later.

A submission that comes twice (the SDK repeats one whose answer it did not see) is found again by its key and
not done twice. Answers are kept for a while after they were fetched, because the fetch may be repeated too.
With a journal, requests and results outlive the process. All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from termrl.engine.journal import Entry, Journal

KEEP_FETCHED_SECONDS = 120.0
KEEP_UNFETCHED_SECONDS = 6 * 3600.0


@dataclass(frozen=True)
class Identity:
    """What tells a request from others, and to whom it belongs."""

    key: str
    session: str
    model: str | None = None
    """The training client whose state the request may change or read, in turn with its others."""


@dataclass(frozen=True)
class Result:
    body: bytes
    content_type: str = "application/json"
    failed: bool = False


@dataclass
class Pending:
    request_id: str
    identity: Identity
    n: int = 0
    """Its place among all requests; 0 without a journal."""
    replayed: bool = False
    """Asked for by a client of an engine that was killed since."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    result: Result | None = None
    cancelled: bool = False
    expires: float = float("inf")


class Futures:
    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal
        self._by_id: dict[str, Pending] = {}
        self._by_key: dict[str, Pending] = {}
        self._next_sweep = 0.0

    def submit(self, identity: Identity | None, call: str, body: bytes) -> tuple[Pending, bool]:
        """The entry for a submission, and whether it is new; without an identity it always is."""
        self._sweep()
        if identity is not None and identity.key in self._by_key:
            return self._by_key[identity.key], False
        request_id = uuid.uuid4().hex
        pending = Pending(request_id, identity or Identity(request_id, ""))
        if self._journal is not None and identity is not None:
            pending.n = self._journal.add_request(
                request_id, identity.key, identity.session, identity.model, call, body
            )
        self._remember(pending)
        return pending, True

    def restore(self, entry: Entry) -> Pending:
        """A request of an engine that was killed, with its result if it had one."""
        pending = Pending(
            entry.request_id, Identity(entry.key, entry.session, entry.model), entry.n, replayed=True
        )
        self._remember(pending)
        if entry.result is not None:
            pending.result = Result(entry.result, entry.content_type or "application/json")
            pending.expires = time.monotonic() + KEEP_UNFETCHED_SECONDS
            pending.done.set()
        return pending

    def resolve(self, pending: Pending, result: Result) -> None:
        """Called again for a request that is done already, it changes nothing."""
        if pending.done.is_set():
            return
        pending.result = result
        pending.expires = time.monotonic() + KEEP_UNFETCHED_SECONDS
        if self._journal is not None and pending.n:
            self._journal.put_result(pending.n, result.body, result.content_type)
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

    def cancel_session(self, session_id: str) -> None:
        for pending in [p for p in self._by_id.values() if p.identity.session == session_id]:
            pending.cancelled = True
            self._forget(pending)

    def _remember(self, pending: Pending) -> None:
        self._by_id[pending.request_id] = pending
        self._by_key[pending.identity.key] = pending

    def _forget(self, pending: Pending) -> None:
        self._by_id.pop(pending.request_id, None)
        self._by_key.pop(pending.identity.key, None)
        if self._journal is not None and pending.n:
            self._journal.drop_request(pending.request_id)

    def _sweep(self) -> None:
        now = time.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + 10
            for pending in [entry for entry in self._by_id.values() if entry.expires < now]:
                self._forget(pending)
