"""Runs what is missing of an evaluation's attempts; each is on disk before anyone hears of it.

What is stored is read without its turns and what was run gives them up once it is kept, so memory grows
with the rollouts in flight and not with the benchmark. An excluded rollout is run again when the command
is given again, until it has been tried in `SITTINGS` of them; `retry` says otherwise.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from termrl.errors import UserError
from termrl.rollout.collect import Attempt, rollout_seed
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout
from termrl.store import Place, Run

SITTINGS = 3
SITTING = "sittings"
"""The tag that counts in how many sittings an excluded rollout was tried."""

type Retry = Literal["auto", "excluded", "none"]
type Finished = Callable[[Place, Rollout, bool], None]
"""Hears of each rollout once it is stored; the flag says whether it was run just now."""


async def run_attempts(
    run: Run,
    pool: RolloutPool,
    wanted: Sequence[Attempt],
    *,
    seed: int,
    retry: Retry = "auto",
    finished: Finished = lambda place, rollout, fresh: None,
    starting: Callable[[int], None] = lambda missing: None,
    priced: Callable[[Rollout], Rollout] = lambda rollout: rollout,
) -> dict[Place, Rollout]:
    """Every attempt's rollout, without its turns, in the attempts' order.

    `finished` first hears of all that are stored; then `starting` of how many are to be run. `priced` adds
    what a rollout cost.
    """
    stages = {(attempt.place.stage, attempt.place.step) for attempt in wanted}
    stored = {
        place: rollout
        for stage, step in stages
        for place, rollout in run.rollouts(stage, step, with_turns=False).items()
    }
    found: dict[Place, Rollout] = {}

    async def obtain(attempt: Attempt, before: Rollout | None) -> None:
        ended = await pool.run(attempt.task, attempt.sampler, seed=rollout_seed(seed, attempt.place))
        tags = {**ended.tags, **attempt.tags}
        if not ended.outcome.scored:
            tags[SITTING] = str(_sittings(before) + 1)
        rollout = priced(replace(ended, tags=tags))
        run.add_rollout(attempt.place, rollout)
        finished(attempt.place, rollout, True)
        found[attempt.place] = replace(rollout, turns=(), usage=rollout.used)

    missing = []
    for attempt in wanted:
        before = stored.get(attempt.place)
        if before is None or _runs_again(before, retry):
            missing.append((attempt, before))
        else:
            found[attempt.place] = before
            finished(attempt.place, before, False)
    starting(len(missing))
    try:
        async with asyncio.TaskGroup() as group:
            for attempt, before in missing:
                group.create_task(obtain(attempt, before))
    except BaseExceptionGroup as failures:
        mendable = [failure for failure in failures.exceptions if isinstance(failure, UserError)]
        raise (mendable or failures.exceptions)[0] from None
    return {attempt.place: found[attempt.place] for attempt in wanted}


def _runs_again(before: Rollout, retry: Retry) -> bool:
    if before.outcome.scored or retry == "none":
        return False
    return retry == "excluded" or _sittings(before) < SITTINGS


def _sittings(before: Rollout | None) -> int:
    return int(before.tags.get(SITTING, 1)) if before is not None else 0
