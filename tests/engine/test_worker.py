from __future__ import annotations

import queue
from collections.abc import Generator, Iterator

import numpy as np
import pytest

from termrl.engine.models import BaseModel
from termrl.engine.sampler import Sampler
from termrl.engine.sequences import SamplingSettings
from termrl.engine.worker import Job, Worker

Events = queue.SimpleQueue[str]


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.stop(30)
    assert not worker._thread.is_alive()


def job(events: Events, name: str, *, quick: bool = False) -> Job:
    return Job(lambda: name, events.put, lambda error: events.put(repr(error)), quick)


def test_long_jobs_keep_their_order_and_quick_ones_do_not_wait(worker: Worker) -> None:
    events: Events = queue.SimpleQueue()

    def long() -> Generator[None, None, str]:
        yield
        worker.submit(job(events, "quick", quick=True))
        yield
        yield
        return "long"

    worker.submit(Job(long, events.put, lambda _: None))
    worker.submit(job(events, "next"))
    worker.start()
    assert [events.get(timeout=30) for _ in range(3)] == ["quick", "long", "next"]


def test_a_job_that_fails_tells_its_caller_and_the_next_one_runs(worker: Worker) -> None:
    events: Events = queue.SimpleQueue()

    def early() -> None:
        raise ValueError("early")

    def late() -> Generator[None, None, None]:
        yield
        raise ValueError("late")

    for work in (early, late):
        worker.submit(Job(work, lambda _: None, lambda error: events.put(str(error))))
    worker.submit(job(events, "fine"))
    worker.start()
    assert [events.get(timeout=30) for _ in range(3)] == ["early", "late", "fine"]


def test_sampling_that_fails_fails_its_requests_and_nothing_else(worker: Worker, base: BaseModel) -> None:
    events: Events = queue.SimpleQueue()
    prompt = np.arange(2, 12, dtype=np.int32)

    class Broken(Sampler):
        def step(self) -> None:
            raise RuntimeError("out of memory")

    def sample(kind: type[Sampler]) -> Job:
        def work() -> None:
            sampler = worker.sampler(kind.__name__, lambda: kind(base, base.params))
            worker.watch(kind.__name__, lambda error: events.put(str(error)))
            sampler.sample(prompt, SamplingSettings(4, 1), 0, lambda answer: events.put("sampled"))

        return Job(work, lambda _: None, lambda error: events.put(repr(error)), quick=True)

    worker.start()
    for kind in (Broken, Sampler, Broken):
        worker.submit(sample(kind))
    assert sorted(events.get(timeout=60) for _ in range(3)) == ["out of memory", "out of memory", "sampled"]


def test_few_samplers_are_kept_and_busy_ones_always(worker: Worker, base: BaseModel) -> None:
    first = worker.sampler("busy", lambda: Sampler(base, base.params))
    first.sample(np.arange(2, 12, dtype=np.int32), SamplingSettings(4, 1), 0, lambda _: None)
    for i in range(9):
        worker.sampler(i, lambda: Sampler(base, base.params))
    assert len(worker._samplers) <= 4
    assert worker.sampler("busy", lambda: pytest.fail("a busy sampler was dropped")) is first
    worker.start()
