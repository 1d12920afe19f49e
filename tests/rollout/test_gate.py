"""`prewarm`: sandboxes booted ahead of the demand, and no more agents than there are places."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from termrl.policy.sampler import SampledAnswer
from termrl.rollout.outcome import Outcome
from termrl.rollout.pool import RolloutPool
from termrl.sandbox.labels import labelled_run
from termrl.sandbox.leftovers import find


class HeldSampler:
    """Answers when it is told to."""

    policy_version = 0

    def __init__(self, script: Any) -> None:
        self._script = script
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    def for_attempt(self) -> "HeldSampler":
        return self

    async def sample(self, prompt: Any, max_tokens: int, seed: int) -> SampledAnswer:
        self.asked.set()
        await self.may_answer.wait()
        answer: SampledAnswer = await self._script.sample(prompt, max_tokens, seed)
        return answer


def booted(run: str) -> int:
    return sum(each.kind == "sandbox" and each.label.run == run for each in find(engines=()))


async def until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_sandboxes_are_booted_ahead_and_no_agent_runs_before_its_turn(
    bench: Any, say_hello: list[str]
) -> None:
    samplers = [HeldSampler(bench.script(say_hello)) for _ in range(5)]
    with labelled_run("gate"):
        pool = RolloutPool(bench.runner(), concurrency=1, prewarm=2)
        running = [asyncio.create_task(pool.run(bench.task, each, seed=0)) for each in samplers]
        await until(lambda: booted("gate") == 3 and any(each.asked.is_set() for each in samplers))
        await asyncio.sleep(0.5)
        assert booted("gate") == 3
        assert sum(each.asked.is_set() for each in samplers) == 1
        for each in samplers:
            each.may_answer.set()
        async with asyncio.timeout(120):
            rollouts = await asyncio.gather(*running)
    assert [rollout.outcome for rollout in rollouts] == [Outcome.SOLVED] * 5
    assert booted("gate") == 0


async def test_a_rollout_that_is_cancelled_at_the_gate_gives_nothing_away(
    bench: Any, say_hello: list[str]
) -> None:
    samplers = [HeldSampler(bench.script(say_hello)) for _ in range(3)]
    pool = RolloutPool(bench.runner(), concurrency=1, prewarm=1)
    running = [asyncio.create_task(pool.run(bench.task, each, seed=0)) for each in samplers]
    await until(lambda: any(each.asked.is_set() for each in samplers))
    (first,) = [place for place, each in enumerate(samplers) if each.asked.is_set()]
    waiting = next(task for place, task in enumerate(running) if place != first)
    waiting.cancel()
    for each in samplers:
        each.may_answer.set()
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*running, return_exceptions=True)
    assert sum(isinstance(each, asyncio.CancelledError) for each in ended) == 1
    assert sum(getattr(each, "outcome", None) is Outcome.SOLVED for each in ended) == 2
