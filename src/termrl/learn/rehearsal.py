"""A few rollouts by script, in real sandboxes: what tasks and sandboxes take, without asking a model.

A task's reference solution is typed as a demonstrator would; a task that has none gets one look around. What
ends by the infrastructure's doing says that a run would not work here.
"""

import asyncio
from collections.abc import Sequence

from termrl.errors import UserError
from termrl.learn.demonstrations import demonstration
from termrl.learn.progress import Progress
from termrl.policy.rendering import Renderer
from termrl.policy.scripted import ScriptedSampler
from termrl.policy.tokenizer import Tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout
from termrl.tasks import HarborTask, TaskError, reference_commands

LOOK_AROUND = ["ls"]


class RehearsalFailedError(UserError):
    """Scripted rollouts did not come to an end that could be scored."""


async def rehearse(
    tasks: Sequence[HarborTask],
    pool: RolloutPool,
    tokenizer: Tokenizer,
    renderer: Renderer,
    progress: Progress,
) -> list[Rollout]:
    """One scripted rollout of each task."""
    progress.phase("scripted rollouts", len(tasks))

    async def attempt(task: HarborTask) -> Rollout:
        sampler = ScriptedSampler(demonstration(_commands(task)), tokenizer, renderer, repeat_last=True)
        rollout = await pool.run(task, sampler, seed=0)
        progress.advance(sandboxes=pool.in_flight)
        return rollout

    rollouts = await asyncio.gather(*map(attempt, tasks))
    lost = [rollout for rollout in rollouts if not rollout.outcome.scored]
    if lost:
        reason = lost[0].detail.strip().partition("\n")[0]
        raise RehearsalFailedError(
            f"{len(lost)} of {len(rollouts)} scripted rollouts ended as {lost[0].outcome.value}, one at "
            f"{lost[0].task_name} ({reason}): `termrl doctor` says more about this machine."
        )
    return rollouts


def _commands(task: HarborTask) -> list[str]:
    try:
        return reference_commands(task)
    except TaskError:
        return LOOK_AROUND
