"""An evaluation of one weight version within a training run, on tasks that it was not trained on.

Each attempt is a rollout in the store, at a stage of its own; asking again runs only what is missing.
"""

from collections.abc import Callable, Sequence

from termrl.evaluate.attempts import run_attempts
from termrl.evaluate.intervals import Rate, solve_rate
from termrl.learn.progress import Progress
from termrl.policy.sampler import Sampler
from termrl.rollout.collect import Attempt
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout
from termrl.store import Place, Run
from termrl.tasks import HarborTask


async def evaluate_tasks(
    run: Run,
    pool: RolloutPool,
    tasks: Sequence[HarborTask],
    sampler: Sampler,
    *,
    stage: str,
    step: int = 0,
    attempts: int = 1,
    seed: int = 0,
    tags: Callable[[HarborTask], dict[str, str]] = lambda task: {},
    progress: Progress,
) -> list[Rollout]:
    """`attempts` rollouts at each of the tasks, in the tasks' order; `tags` are kept with each."""
    wanted = [
        Attempt(Place(stage, step, index, member), task, sampler, tags(task))
        for index, task in enumerate(tasks)
        for member in range(attempts)
    ]
    solved = scored = 0

    def finished(place: Place, rollout: Rollout, fresh: bool) -> None:
        nonlocal solved, scored
        solved += rollout.solved
        scored += rollout.outcome.scored
        progress.advance(solve_rate=solved / max(scored, 1), sandboxes=pool.in_flight)

    progress.phase(f"evaluation: {stage.removeprefix('eval-').replace('_', ' ')}", len(wanted))
    rollouts = await run_attempts(run, pool, wanted, seed=seed, retry="excluded", finished=finished)
    return list(rollouts.values())


def rate_of(rollouts: Sequence[Rollout]) -> Rate:
    """The solve rate of scored rollouts, with its interval over tasks."""
    by_task: dict[str, list[bool]] = {}
    for rollout in rollouts:
        if rollout.outcome.scored:
            by_task.setdefault(rollout.task_name, []).append(rollout.solved)
    return solve_rate(by_task)
