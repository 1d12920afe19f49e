"""Compiled programs of one model, made beside the work: a thread of its own compiles, others go on.

A program is known by a key and made by a function that compiles it. Who needs one that is not there yet has
it begun, works meanwhile in another shape or on something else, and waits a moment at a time. `status` says
in words what is being compiled, where someone waits.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from termrl.engine.memory import give_back_freed_memory

WAIT_SECONDS = 0.005
_PAUSE_SECONDS = 1.0
"""Who waits asks again within this."""

Key = tuple[Any, ...]
"""The kind of a program, then what tells it from others of its kind."""

_log = logging.getLogger(__name__)


@dataclass
class _Order:
    name: str
    make: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)


class Programs:
    def __init__(self) -> None:
        self._orders: dict[Key, _Order] = {}
        self._queue: deque[_Order] = deque()
        self._making: tuple[str, float] | None = None
        self._waited = float("-inf")
        """When someone last waited in vain."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        _all.add(self)

    def begin(self, key: Key, name: str, make: Callable[[], Any], *, urgent: bool = True) -> None:
        """Has a program made, before those that wait if it is urgent, unless it is made or being made.

        One that failed is tried again.
        """
        with self._lock:
            order = self._orders.get(key)
            if order is not None and not _failed(order):
                if urgent:
                    self._put_first(order)
                return
            order = self._orders[key] = _Order(name, make)
            if urgent:
                self._queue.appendleft(order)
            else:
                self._queue.append(order)
            if self._thread is None:
                self._thread = threading.Thread(target=self._make_all, name="compiler", daemon=True)
                self._thread.start()

    def is_ready(self, key: Key) -> bool:
        order = self._orders.get(key)
        return order is not None and order.future.done() and not _failed(order)

    def ready(self, kind: str) -> list[Key]:
        """The keys of the programs of a kind that are there."""
        return [key for key in list(self._orders) if key[0] == kind and self.is_ready(key)]

    def get(self, key: Key) -> Any:
        """What was made; raises what making it raised. Waits for it."""
        return self._orders[key].future.result()

    def wait(self, key: Key, seconds: float = WAIT_SECONDS) -> bool:
        """Whether a program that was begun is there, after a moment; raises what making it raised.

        What someone waits for in vain is made next: others may have been begun for work that is done since.
        """
        order = self._orders[key]
        try:
            order.future.result(seconds)
        except TimeoutError:
            self._waited = time.monotonic()
            with self._lock:
                self._put_first(order)
            return False
        return True

    @property
    def status(self) -> str | None:
        """A line about what is being compiled, if anything is and someone waits."""
        making = self._making
        if making is None or time.monotonic() > self._waited + _PAUSE_SECONDS:
            return None
        name, since = making
        more = f", {len(self._queue)} more to come" if self._queue else ""
        return f"compiling {name} for {time.monotonic() - since:.0f} s{more}"

    def _put_first(self, order: _Order) -> None:
        if order in self._queue:
            self._queue.remove(order)
            self._queue.appendleft(order)

    def _make_all(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                order = self._queue.popleft()
                self._making = order.name, time.monotonic()
            self._make(order)

    def _stop(self) -> None:
        with self._lock:
            self._queue.clear()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _make(self, order: _Order) -> None:
        begin = time.monotonic()
        _log.info("Compiling %s", order.name)
        try:
            made = order.make()
        except BaseException as error:
            self._making = None
            order.future.set_exception(error)
            return
        finally:
            give_back_freed_memory()
        self._making = None
        taken = time.monotonic() - begin
        _log.info("Compiled %s in %.1f s, %d more to come", order.name, taken, len(self._queue))
        order.future.set_result(made)


_all: weakref.WeakSet[Programs] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that is inside the compiler when the interpreter goes takes the process down with it."""
    for programs in list(_all):
        programs._stop()


def _failed(order: _Order) -> bool:
    return order.future.done() and order.future.exception() is not None
