"""The one thread that computes. Long jobs run in the order they came; sampling goes on between their pieces.

A long job is a function, or a generator function whose pauses let others have a turn. A quick job does not
wait for the long ones: a request to sample joins its batch while a training pass is under way. What a job
raises goes to its caller; the thread itself ends only when told to.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any

from termrl.engine.memory import give_back_freed_memory
from termrl.engine.sampler import Sampler

IDLE_SAMPLERS = 4
GATHER_SECONDS = 0.003
"""How long an idle worker waits for another request after one, so that those sent together run together."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    work: Callable[[], Any]
    on_done: Callable[[Any], None]
    on_error: Callable[[Exception], None]
    quick: bool = False


@dataclass
class _Running:
    job: Job
    generator: Generator[None, None, Any]


class Worker:
    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._backlog: deque[Job] = deque()
        self._running: _Running | None = None
        self._samplers: OrderedDict[Hashable, Sampler] = OrderedDict()
        self._on_sampler_error: dict[Hashable, list[Callable[[Exception], None]]] = {}
        self._thread = threading.Thread(target=self._loop, name="engine-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._inbox.put(job)

    def stop(self, timeout: float) -> None:
        self._inbox.put(None)
        self._thread.join(timeout)

    def sampler(self, key: Hashable, make: Callable[[], Sampler]) -> Sampler:
        """The sampler of a snapshot, made if it is not held. Call it from inside a job."""
        if key not in self._samplers:
            idle = [name for name, sampler in self._samplers.items() if not sampler.busy]
            for name in idle:
                self._samplers[name].release()
            for name in idle[: max(0, len(self._samplers) + 1 - IDLE_SAMPLERS)]:
                del self._samplers[name]
            give_back_freed_memory()
            self._samplers[key] = make()
        self._samplers.move_to_end(key)
        return self._samplers[key]

    def watch(self, key: Hashable, on_error: Callable[[Exception], None]) -> None:
        """Whom to tell if the sampler fails while it works. Call it from inside a job."""
        self._on_sampler_error.setdefault(key, []).append(on_error)

    def _loop(self) -> None:
        while self._take_jobs():
            if self._running is not None:
                self._advance()
            elif self._backlog:
                self._begin(self._backlog.popleft())
            self._step_samplers()

    def _take_jobs(self) -> bool:
        """Takes what has arrived, waiting if there is nothing else to do; False when it is time to stop."""
        idle = self._running is None and not self._backlog
        idle = idle and not any(sampler.busy for sampler in self._samplers.values())
        gathers, end = idle, float("inf")
        while True:
            wait = max(0.0, min(GATHER_SECONDS, end - time.monotonic())) if gathers and not idle else None
            try:
                job = self._inbox.get(block=gathers, timeout=wait)
            except queue.Empty:
                return True
            if job is None:
                return False
            if idle:
                idle, end = False, time.monotonic() + 20 * GATHER_SECONDS
            if job.quick:
                self._begin(job)
            else:
                self._backlog.append(job)

    def _begin(self, job: Job) -> None:
        try:
            result = job.work()
        except Exception as error:
            job.on_error(error)
            return
        if isinstance(result, Generator):
            self._running = _Running(job, result)
            self._advance()
        else:
            job.on_done(result)

    def _advance(self) -> None:
        running, self._running = self._running, None
        assert running is not None
        try:
            next(running.generator)
        except StopIteration as end:
            running.job.on_done(end.value)
        except Exception as error:
            running.job.on_error(error)
        else:
            self._running = running

    def _step_samplers(self) -> None:
        for key, sampler in list(self._samplers.items()):
            if not sampler.busy:
                self._on_sampler_error.pop(key, None)
                continue
            try:
                sampler.step()
            except Exception as error:
                _log.exception("Sampling failed")
                del self._samplers[key]
                for tell in self._on_sampler_error.pop(key, []):
                    tell(error)
