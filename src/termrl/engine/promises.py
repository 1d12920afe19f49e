"""Between the event loop, which reads and answers, and the worker's thread, which computes.

`do` waits for a short piece of work. `keep` promises the result of a long one: it is written into its future
when it is there. Also the few shapes in which everything is answered.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web

from termrl.engine.fields import Fields, MalformedRequest
from termrl.engine.futures import Futures, Pending, Result
from termrl.engine.worker import Job, Worker
from termrl.errors import UserError

_log = logging.getLogger(__name__)


class Promises:
    """Made inside the event loop it answers from."""

    def __init__(self, worker: Worker, futures: Futures) -> None:
        self.futures = futures
        self._worker = worker
        self._loop = asyncio.get_running_loop()

    async def do(self, work: Callable[[], Any]) -> Any:
        """Runs a short piece of work in the worker's thread."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def set_result(value: Any) -> None:
            self._loop.call_soon_threadsafe(_set_unless_done, future, value, None)

        def set_error(error: Exception) -> None:
            self._loop.call_soon_threadsafe(_set_unless_done, future, None, error)

        self._worker.submit(Job(work, set_result, set_error, quick=True))
        return await future

    def run(self, work: Callable[[], None], fail: Callable[[Exception], None]) -> None:
        """Has a short piece of work done that promises its result itself."""
        self._worker.submit(Job(work, lambda _: None, fail, quick=True))

    def keep(self, pending: Pending, work: Callable[[], Any], write: Callable[[Any], Result]) -> None:
        """Has the work done in its turn and resolves the promise with what it gives or raises."""
        self._worker.submit(
            Job(
                work,
                lambda value: self.resolve(pending, lambda: write(value)),
                lambda error: self.fail(pending, error),
            )
        )

    def resolve(self, pending: Pending, write: Callable[[], Result]) -> None:
        try:
            result = write()
        except Exception as error:
            result = failure(error)
        self._loop.call_soon_threadsafe(self.futures.resolve, pending, result)

    def fail(self, pending: Pending, error: Exception) -> None:
        self.resolve(pending, lambda: failure(error))


def _set_unless_done(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def read_fields(body: bytes) -> Fields:
    try:
        return Fields(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"The body is not JSON: {error}.") from None


def json_result(value: dict[str, Any]) -> Result:
    return Result(json.dumps(value).encode())


def failure(error: Exception) -> Result:
    if isinstance(error, UserError | MalformedRequest):
        answer = {"error": str(error), "category": "user"}
    else:
        _log.error("A request failed", exc_info=error)
        answer = {"error": f"The engine failed: {type(error).__name__}: {error}", "category": "server"}
    return Result(json.dumps(answer).encode(), failed=True)


def error_response(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
