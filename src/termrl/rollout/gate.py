"""Sandboxes ahead of the demand: a rollout boots its own, then waits at the gate until an agent may run.

The pool lets in as many rollouts as agents may run, and `prewarm` more; those wait here with their sandbox
booted and their agent set up, before the agent's clock starts. When an agent is through, the next goes on.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial


class Ticket:
    """One rollout's way through: it goes in once, however many steps its task has."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._inside = False

    async def enter(self, event: TrialHookEvent) -> None:
        if not self._inside:
            await self._places.acquire()
            self._inside = True

    def leave(self) -> None:
        if self._inside:
            self._places.release()
            self._inside = False


_ticket: ContextVar[Ticket | None] = ContextVar("ticket", default=None)


@contextmanager
def at_the_gate(places: asyncio.Semaphore | None) -> Iterator[None]:
    """The rollout of this block passes the gate of these places; without any it passes freely."""
    if places is None:
        yield
        return
    ticket = Ticket(places)
    token = _ticket.set(ticket)
    try:
        yield
    finally:
        _ticket.reset(token)
        ticket.leave()


def wait_at_the_gate(trial: Trial) -> None:
    """Has the trial wait before its agent starts, if its rollout came with a ticket."""
    ticket = _ticket.get()
    if ticket is not None:
        trial.add_hook(TrialEvent.AGENT_START, ticket.enter)
