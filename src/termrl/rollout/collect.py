"""Gets the rollouts of a list of places: those that are stored are read, only the others are run.

A rollout that ends is committed to the store before anyone sees it, so a run that is killed and started
again never samples a finished rollout twice.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from termrl.errors import UserError
from termrl.policy.sampler import Sampler
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout
from termrl.store.run import Place, Run
from termrl.tasks.task import HarborTask


@dataclass(frozen=True, slots=True)
class Attempt:
    """A rollout to be had: where it belongs, at which task, by whom."""

    place: Place
    task: HarborTask
    sampler: Sampler
    tags: dict[str, str] = field(default_factory=dict)


def rollout_seed(seed: int, place: Place) -> int:
    """The seed of a rollout: a function of the run's seed and its place only."""
    return Random(f"{seed}/{place.stage}/{place.step}/{place.group}/{place.member}").getrandbits(31)


async def collect(
    run: Run,
    pool: RolloutPool,
    attempts: Sequence[Attempt],
    *,
    seed: int,
    finished: Callable[[Rollout], None] = lambda rollout: None,
) -> dict[Place, Rollout]:
    """Every attempt's rollout, in the attempts' order. `finished` hears of each as it is there."""
    stages = {(attempt.place.stage, attempt.place.step) for attempt in attempts}
    stored = {place: rollout for stage in stages for place, rollout in run.rollouts(*stage).items()}
    found: dict[Place, Rollout] = {}

    async def obtain(attempt: Attempt) -> None:
        rollout = stored.get(attempt.place)
        if rollout is None or not rollout.outcome.scored:
            ended = await pool.run(attempt.task, attempt.sampler, seed=rollout_seed(seed, attempt.place))
            rollout = replace(ended, tags={**ended.tags, **attempt.tags})
            run.add_rollout(attempt.place, rollout)
        found[attempt.place] = rollout
        finished(rollout)

    try:
        async with asyncio.TaskGroup() as group:
            for attempt in attempts:
                group.create_task(obtain(attempt))
    except BaseExceptionGroup as failures:
        mendable = [failure for failure in failures.exceptions if isinstance(failure, UserError)]
        raise (mendable or failures.exceptions)[0] from None
    return {attempt.place: found[attempt.place] for attempt in attempts}
