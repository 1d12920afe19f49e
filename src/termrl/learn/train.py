"""A training run from end to end: base evaluation, warm-up, evaluation, reinforcement learning, evaluation.

It is a straight line over what the store already has: stages that are complete find their rollouts there,
weights come from the last checkpoint. The same call on the same run therefore goes on where it stopped, and
on a finished run does nothing.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tinker

from termrl.config import TrainConfig
from termrl.learn.learner import Learner
from termrl.learn.progress import Progress
from termrl.learn.reinforce import STAGE, reinforce
from termrl.learn.warmup import demonstrated_tasks, family_of, imitate, make_demonstrations
from termrl.policy.rendering import Renderer
from termrl.policy.sampler import Sampler
from termrl.policy.tokenizer import Tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.store import Checkpoint, Run
from termrl.tasks import HarborTask

Evaluate = Callable[[str, int, Sampler], Awaitable[None]]
"""Evaluates a sampler on held-out tasks: the name of the evaluation, the step, the sampler."""


async def train_run(
    run: Run,
    config: TrainConfig,
    service: tinker.ServiceClient,
    pool: RolloutPool,
    tasks: Sequence[HarborTask],
    tokenizer: Tokenizer,
    renderer: Renderer,
    *,
    evaluate: Evaluate,
    log: Callable[[int, dict[str, Any]], None],
    progress: Progress,
) -> None:
    """Everything from the base model to the last evaluation; `log` is given each step's metrics."""
    stop = renderer.get_stop_token_ids()
    learner, first_step = await _start(
        run, config, service, pool, tasks, tokenizer, renderer, evaluate, progress
    )
    if config.warmup.enabled and first_step == 0:
        with timed_phase(run, "eval-after_warmup"):
            await evaluate("after_warmup", 0, await learner.sampler(stop))
    if first_step >= config.max_steps:
        progress.note(f"The run has its {config.max_steps} steps already.")

    async def after_step(step: int, metrics: dict[str, Any]) -> None:
        log(step, metrics)
        if config.eval_every and (step + 1) % config.eval_every == 0 and step + 1 < config.max_steps:
            await evaluate("during_rl", step + 1, await learner.sampler(stop))

    if config.max_steps == 0:
        return
    with timed_phase(run, STAGE):
        await reinforce(
            run,
            pool,
            learner,
            tasks,
            config,
            stop,
            first_step=first_step,
            progress=progress,
            after_step=after_step,
        )
    steps_done = max(run.steps(), default=-1) + 1
    if _last_checkpoint(run, steps_done) is None:
        run.record_checkpoint(await learner.checkpoint(f"step-{steps_done:05d}", steps_done))
    with timed_phase(run, "eval-after_rl"):
        await evaluate("after_rl", steps_done, await learner.sampler(stop))


async def _start(
    run: Run,
    config: TrainConfig,
    service: tinker.ServiceClient,
    pool: RolloutPool,
    tasks: Sequence[HarborTask],
    tokenizer: Tokenizer,
    renderer: Renderer,
    evaluate: Evaluate,
    progress: Progress,
) -> tuple[Learner, int]:
    """The learner to go on with, and the step it is at."""
    checkpoints = run.checkpoints()
    if checkpoints:
        last = checkpoints[-1]
        progress.note(f"Going on from checkpoint {last.name}.")
        return await Learner.resumed(service, config, last), last.step
    learner = await Learner.fresh(service, config)
    with timed_phase(run, "eval-base"):
        await evaluate("base", 0, await learner.sampler(renderer.get_stop_token_ids()))
    if config.warmup.enabled:
        shown = demonstrated_tasks(tasks, config)
        run.record_fact("demonstrated_families", sorted({family_of(task) for task in shown}))
        with timed_phase(run, "demonstrations"):
            demonstrations = await make_demonstrations(
                run, pool, tasks, config, tokenizer, renderer, progress
            )
        with timed_phase(run, "warmup"):
            await imitate(learner, demonstrations, config, progress)
    learner.version = 0
    run.record_checkpoint(await learner.checkpoint("start", 0))
    return learner, 0


def _last_checkpoint(run: Run, step: int) -> Checkpoint | None:
    return next((checkpoint for checkpoint in run.checkpoints() if checkpoint.step == step), None)


@contextmanager
def timed_phase(run: Run, name: str) -> Iterator[None]:
    """Adds the time of a phase to the run, whether it ends or is broken off."""
    started = time.monotonic()
    done = False
    try:
        yield
        done = True
    finally:
        run.record_phase(name, seconds=time.monotonic() - started, done=done)
