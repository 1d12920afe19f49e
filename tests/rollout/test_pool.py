import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from termrl.errors import UserError
from termrl.rollout.outcome import Outcome
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout, Timings
from termrl.rollout.runner import RolloutRunner, Task

TASK = cast(Task, Path())
SAMPLER: Any = None


def ended(outcome: Outcome) -> Rollout:
    return Rollout("t", outcome, 0.0 if outcome.scored else None, (), Timings())


def pool_of(run: Callable[[int], Any], **settings: Any) -> RolloutPool:
    """A pool whose rollouts are whatever `run` makes of their seed."""

    class Runner:
        async def run(self, task: Task, sampler: object, *, seed: int) -> Rollout:
            rollout: Rollout = await run(seed)
            return rollout

    return RolloutPool(
        cast(RolloutRunner, Runner()), **{"concurrency": 4, "backoff_seconds": 0.0, **settings}
    )


async def test_no_more_rollouts_run_than_there_are_places() -> None:
    most = 0

    async def run(seed: int) -> Rollout:
        nonlocal most
        most = max(most, pool.in_flight)
        await asyncio.sleep(0.001)
        return ended(Outcome.FAILED)

    pool = pool_of(run, concurrency=3)
    async with asyncio.TaskGroup() as group:
        for seed in range(20):
            group.create_task(pool.run(TASK, SAMPLER, seed=seed))
    assert most == 3
    assert pool.in_flight == 0


async def test_what_infrastructure_broke_is_tried_again_with_the_same_seed() -> None:
    seeds: list[int] = []

    async def run(seed: int) -> Rollout:
        seeds.append(seed)
        return ended(Outcome.SANDBOX_LOST if len(seeds) < 3 else Outcome.SOLVED)

    rollout = await pool_of(run, retries=2).run(TASK, SAMPLER, seed=5)
    assert rollout.outcome is Outcome.SOLVED
    assert rollout.tags == {"attempts": "3"}
    assert seeds == [5, 5, 5]


async def test_what_keeps_failing_is_handed_back_by_its_name() -> None:
    calls = 0

    async def run(seed: int) -> Rollout:
        nonlocal calls
        calls += 1
        return ended(Outcome.VERIFIER_FAILED)

    rollout = await pool_of(run, retries=2).run(TASK, SAMPLER, seed=0)
    assert (rollout.outcome, rollout.reward, calls) == (Outcome.VERIFIER_FAILED, None, 3)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome.scored])
async def test_what_the_policy_did_is_never_tried_again(outcome: Outcome) -> None:
    calls = 0

    async def run(seed: int) -> Rollout:
        nonlocal calls
        calls += 1
        return ended(outcome)

    await pool_of(run).run(TASK, SAMPLER, seed=0)
    assert calls == 1


async def test_a_rollout_that_waits_to_try_again_holds_no_place() -> None:
    async def run(seed: int) -> Rollout:
        return ended(Outcome.SANDBOX_LOST if seed == 0 else Outcome.FAILED)

    pool = pool_of(run, concurrency=1, retries=1, backoff_seconds=30.0)
    waiting = asyncio.create_task(pool.run(TASK, SAMPLER, seed=0))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        assert (await pool.run(TASK, SAMPLER, seed=1)).outcome is Outcome.FAILED
    waiting.cancel()


async def test_a_users_error_comes_out_and_frees_its_place() -> None:
    async def run(seed: int) -> Rollout:
        raise UserError("the key is wrong")

    pool = pool_of(run, concurrency=1)
    for _ in range(2):
        with pytest.raises(UserError, match="the key is wrong"):
            await pool.run(TASK, SAMPLER, seed=0)
    assert pool.in_flight == 0


async def test_a_cancelled_rollout_frees_its_place() -> None:
    async def run(seed: int) -> Rollout:
        await asyncio.sleep(3600)
        raise AssertionError

    pool = pool_of(run, concurrency=1)
    running = asyncio.create_task(pool.run(TASK, SAMPLER, seed=0))
    await asyncio.sleep(0.01)
    assert pool.in_flight == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert pool.in_flight == 0


def test_a_pool_without_places_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one place"):
        RolloutPool(cast(RolloutRunner, None), concurrency=0)
