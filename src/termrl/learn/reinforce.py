"""The loop of reinforcement learning: rollouts in groups, advantages, an update, new weights to sample from.

One loop for every mode. A step takes whole groups from the stream, enters them in the ledger, trains on them,
and is recorded once it is applied. After a break the loop begins at the last checkpoint: steps after it
find their groups in the ledger and are applied again to the same weights, so nothing is sampled twice and
nothing is counted twice.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from termrl.errors import UserError
from termrl.learn.checkpoints import Checkpoints
from termrl.learn.curriculum import Curriculum
from termrl.learn.evaluations import Evaluations
from termrl.learn.learner import Learner
from termrl.learn.step import Step
from termrl.learn.stream import GroupStream
from termrl.learn.training import STAGE, Training
from termrl.learn.update import Teaching


async def reinforce(
    training: Training, learner: Learner, teaching: Teaching, curriculum: Curriculum, first_step: int
) -> None:
    """Steps from `first_step` on, until there are enough, time is up, or the run is asked to stop."""
    run, config, progress = training.run, training.config, training.progress
    progress.phase("reinforcement learning", training.steps)
    progress.advance(first_step)
    recorded = run.steps()
    baseline = recorded.get(first_step - 1, {}).get("reward_baseline")
    minutes_before = run.phases().get(STAGE, {}).get("seconds", 0.0) / 60
    started = time.monotonic()
    async with together() as work:
        stream = GroupStream(training, learner, curriculum, work)
        checkpoints = Checkpoints(training, learner)
        evaluations = Evaluations(training, learner, work)
        await evaluations.go_on(first_step)
        for number in range(first_step, training.steps):
            minutes = minutes_before + (time.monotonic() - started) / 60
            if config.max_minutes is not None and minutes > config.max_minutes:
                progress.note(f"max_minutes={config.max_minutes} is reached after {number} steps.")
                break
            step = Step(training, teaching, stream, number, baseline)
            if training.stop.asked or not await step.train():
                break
            learner.new_version()
            stream.trained(step.groups)
            for group in step.groups:
                curriculum.learn(group.drawn.task_name, group.rollouts)
            baseline = step.baseline_after
            metrics = recorded.get(number) or step.metrics()
            if number not in recorded:
                checkpoint = await checkpoints.after_step(number)
                run.ledger.credit(number, step.credits())
                metrics |= step.seconds()
                run.record_step(number, metrics, checkpoint)
                await checkpoints.tidy()
                training.log(number, metrics)
            training.meter.save()
            training.meter.check()
            progress.advance(reward=metrics["reward"] or 0.0, solve_rate=metrics["solve_rate"] or 0.0)
            await evaluations.after_step(number + 1)
        stream.close()
        await training.stop.unless_over(evaluations.finish())
        evaluations.close()


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that fails with the first thing that went wrong, what a user can mend before all else."""
    try:
        async with asyncio.TaskGroup() as work:
            yield work
    except BaseExceptionGroup as failures:
        raise first_cause(failures) from None


def first_cause(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    causes = list(_leaves(failures))
    return next((cause for cause in causes if isinstance(cause, UserError)), causes[0])


def _leaves(failure: BaseException) -> Iterator[BaseException]:
    if isinstance(failure, BaseExceptionGroup):
        for each in failure.exceptions:
            yield from _leaves(each)
    else:
        yield failure
