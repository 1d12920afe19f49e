"""The loop of reinforcement learning: rollouts in groups, advantages, an update, new weights to sample from.

A step's rollouts are in the store before it is trained on; a step is recorded once it is applied. After a
break the loop begins at the last checkpoint: steps after it find their rollouts in the store and are applied
again to the same weights, so nothing is sampled twice and nothing is counted twice.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from termrl.config import TrainConfig
from termrl.learn.batch import make_batch
from termrl.learn.learner import Learner
from termrl.learn.order import step_tasks
from termrl.learn.progress import Progress
from termrl.learn.schedule import adam_at
from termrl.rollout.collect import Attempt, collect
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout
from termrl.store import Checkpoint, Place, Run
from termrl.tasks import HarborTask

STAGE = "train"


async def reinforce(
    run: Run,
    pool: RolloutPool,
    learner: Learner,
    tasks: Sequence[HarborTask],
    config: TrainConfig,
    stop_tokens: Sequence[int],
    *,
    first_step: int,
    progress: Progress,
    after_step: Callable[[int, dict[str, Any]], Awaitable[None]],
) -> None:
    """Steps from `first_step` on, until `max_steps` or `max_minutes`. `after_step` hears of each."""
    progress.phase("reinforcement learning", config.max_steps)
    progress.advance(first_step)
    before = run.phases().get(STAGE, {}).get("seconds", 0.0)
    started = time.monotonic()
    for step in range(first_step, config.max_steps):
        if config.max_minutes is not None and before + time.monotonic() - started > 60 * config.max_minutes:
            progress.note(f"max_minutes={config.max_minutes} is reached after {step} steps.")
            break
        step_started = time.monotonic()
        groups = await _sample_step(run, pool, learner, tasks, config, stop_tokens, step, progress)
        sampled = time.monotonic()
        batch = make_batch(groups, config, step=step)
        metrics = batch.metrics
        if batch.rollout_datums:
            adam = adam_at(step, config)
            losses = await learner.update(batch.minibatches(config.num_substeps), config.loss_fn, adam)
            metrics |= {"loss_sum": losses["loss:sum"], "learning_rate": adam.learning_rate}
        else:
            progress.note(f"Step {step}: no group had rewards that differ, so nothing was trained.")
            learner.version += 1
        trained = time.monotonic()
        checkpoint: Checkpoint | None = None
        if config.save_every and (step + 1) % config.save_every == 0:
            checkpoint = await learner.checkpoint(f"step-{step + 1:05d}", step + 1)
        metrics |= {
            "step": step,
            "seconds_sampling": sampled - step_started,
            "seconds_training": trained - sampled,
            "seconds": time.monotonic() - step_started,
            "tokens_per_second": metrics["sampled_tokens"] / max(sampled - step_started, 1e-9),
        }
        run.record_step(step, metrics, checkpoint)
        progress.advance(reward=metrics["reward"] or 0.0, solve_rate=metrics["solve_rate"] or 0.0)
        await after_step(step, metrics)


async def _sample_step(
    run: Run,
    pool: RolloutPool,
    learner: Learner,
    tasks: Sequence[HarborTask],
    config: TrainConfig,
    stop_tokens: Sequence[int],
    step: int,
    progress: Progress,
) -> list[list[Rollout]]:
    sampler = await learner.sampler(stop_tokens)
    chosen = step_tasks(tasks, seed=config.seed, step=step, batch_size=config.batch_size)
    attempts = [
        Attempt(Place(STAGE, step, group, member), task, sampler)
        for group, task in enumerate(chosen)
        for member in range(config.group_size)
    ]
    started, tokens = time.monotonic(), 0

    def finished(rollout: Rollout) -> None:
        nonlocal tokens
        tokens += rollout.sampled_tokens
        progress.numbers(
            sandboxes=pool.in_flight, tokens_per_second=tokens / max(time.monotonic() - started, 1e-9)
        )

    rollouts = await collect(run, pool, attempts, seed=config.seed, finished=finished)
    groups: list[list[Rollout]] = [[] for _ in chosen]
    for place, rollout in rollouts.items():
        groups[place.group].append(rollout)
    return groups
