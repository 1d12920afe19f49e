"""The one thread that computes. Jobs run in the order they came; sampling goes on between their pieces.

A job is a function, or a generator function whose pauses let sampling have a turn. What a job raises goes to
its caller; the thread itself ends only when told to.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any

from termrl.engine.sampler import Sampler

IDLE_SAMPLERS = 4

_log = logging.getLogger(__name__)

Work = Callable[[], Any]


@dataclass(frozen=True)
class Job:
    work: Work
    on_done: Callable[[Any], None]
    on_error: Callable[[Exception], None]


@dataclass
class _Running:
    job: Job
    generator: Generator[None, None, Any]


class Worker:
    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
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
            self._samplers[key] = make()
            idle = [name for name, sampler in self._samplers.items() if not sampler.busy and name != key]
            for name in idle:
                self._samplers[name].release()
            for name in idle[: max(0, len(self._samplers) - IDLE_SAMPLERS)]:
                del self._samplers[name]
        self._samplers.move_to_end(key)
        return self._samplers[key]

    def watch(self, key: Hashable, on_error: Callable[[Exception], None]) -> None:
        """Whom to tell if the sampler fails while it works. Call it from inside a job."""
        self._on_sampler_error.setdefault(key, []).append(on_error)

    def _loop(self) -> None:
        running: _Running | None = None
        while True:
            sampling = any(sampler.busy for sampler in self._samplers.values())
            if running is None:
                try:
                    job = self._inbox.get(block=not sampling)
                except queue.Empty:
                    job = None
                else:
                    if job is None:
                        return
                    running = self._begin(job)
                    # Requests that arrived together should share their first batch.
                    if running is None and not self._inbox.empty():
                        continue
            else:
                running = self._advance(running)
            self._step_samplers()

    def _begin(self, job: Job) -> _Running | None:
        try:
            result = job.work()
        except Exception as error:
            job.on_error(error)
            return None
        if isinstance(result, Generator):
            return self._advance(_Running(job, result))
        job.on_done(result)
        return None

    def _advance(self, running: _Running) -> _Running | None:
        try:
            next(running.generator)
        except StopIteration as end:
            running.job.on_done(end.value)
            return None
        except Exception as error:
            running.job.on_error(error)
            return None
        return running

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
