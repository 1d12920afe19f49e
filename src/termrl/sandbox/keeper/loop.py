"""The keeper's loop: what is watched, who reacts, and the answers to its one client."""

import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from .messages import encode


class Timed(Protocol):
    """Something that has to be ended at times."""

    def deadlines(self) -> list[float]: ...

    def end_overdue(self, now: float) -> None: ...


class Loop:
    def __init__(self, client: socket.socket, leave: Callable[[], NoReturn]) -> None:
        """`leave` is called when the client is gone."""
        self._client = client
        self._leave = leave
        self._poll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timed: list[Timed] = []

    def run(self) -> NoReturn:
        while True:
            for fd, _ in self._poll.poll(self._time_to_deadline()):
                # One event may end what a later one of the same round is about.
                if fd in self._watched:
                    self._watched[fd]()
            now = time.monotonic()
            for each in self._timed:
                each.end_overdue(now)

    def keep_time_for(self, timed: Timed) -> None:
        self._timed.append(timed)

    def _time_to_deadline(self) -> float | None:
        deadlines = [deadline for each in self._timed for deadline in each.deadlines()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def watch(self, fd: int, react: Callable[[], None]) -> None:
        self._watched[fd] = react
        self._poll.register(fd, select.EPOLLIN)

    def react_otherwise(self, fd: int, react: Callable[[], None]) -> None:
        self._watched[fd] = react

    def release(self, fd: int) -> None:
        """Watch it no more, and leave it open."""
        del self._watched[fd]
        self._poll.unregister(fd)

    def forget(self, fd: int) -> None:
        self.release(fd)
        os.close(fd)

    def answer(self, request: int, **fields: Any) -> None:
        try:
            self._client.sendall(encode({"id": request, **fields}))
        except (BrokenPipeError, ConnectionError):
            self._leave()
