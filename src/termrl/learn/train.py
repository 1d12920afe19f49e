"""A training run from end to end: base evaluation, warm-up, evaluation, reinforcement learning, evaluation.

It is a straight line over what the store already has: stages that are complete find their rollouts there,
weights come from the last checkpoint. The same call on the same run therefore goes on where it stopped, and
on a finished run does nothing. A run that is asked to stop ends by raising why, with its weights kept.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tinker

from termrl.errors import UserError
from termrl.learn.checkpoints import Checkpoints
from termrl.learn.curriculum import Curriculum, PassRate
from termrl.learn.history import read_pass_rates, write_pass_rates
from termrl.learn.learner import Learner
from termrl.learn.reference import Reference
from termrl.learn.reinforce import reinforce
from termrl.learn.training import STAGE, Training
from termrl.learn.update import Teaching
from termrl.learn.warmup import demonstrated_tasks, family_of, imitate, make_demonstrations
from termrl.rollout.record import Rollout
from termrl.store import Run

PRIOR = "pass_rates_before"


class CheckpointsGoneError(UserError):
    """The server has none of the run's checkpoints any more."""


async def train_run(training: Training) -> None:
    """Everything from the base model to the last evaluation."""
    stop, run = training.stop, training.run
    async with stop.watching(training.pool):
        try:
            await _train(training)
        finally:
            training.meter.save()
            write_pass_rates(run.path.parent, training.config.model_name, run.name, _results(run))


async def _train(training: Training) -> None:
    stop, run = training.stop, training.run
    learner, first_step = await stop.guard(_start(training))
    if training.config.warmup.enabled and first_step == 0:
        await stop.guard(_evaluate(training, learner, "after_warmup", 0))
    if first_step >= training.steps:
        training.progress.note(f"The run has its {training.steps} steps already.")
    if training.steps == 0:
        return
    teaching = await stop.guard(_teaching(training, learner))
    with timed_phase(run, STAGE):
        await reinforce(training, learner, teaching, _curriculum(training, first_step), first_step)
    await Checkpoints(training, learner).keep_last(final=not stop.asked)
    if stop.reason is not None:
        raise stop.reason
    await stop.guard(_evaluate(training, learner, "after_rl", learner.version))


async def _start(training: Training) -> tuple[Learner, int]:
    """The learner to go on with, and the step it is at."""
    run, config = training.run, training.config
    if run.checkpoints():
        return await _resume(training)
    learner = await Learner.fresh(training.service, config, training.meter)
    await learner.require_loss()
    if config.eval_base:
        await _evaluate(training, learner, "base", 0)
    if config.warmup.enabled:
        shown = demonstrated_tasks(training.tasks, config)
        run.record_fact("demonstrated_families", sorted({family_of(task) for task in shown}))
        with timed_phase(run, "demonstrations"):
            demonstrations = await make_demonstrations(training)
        with timed_phase(run, "warmup"):
            await imitate(learner, demonstrations, config, training.progress)
    learner.version = 0
    run.record_checkpoint(await learner.checkpoint("start", 0))
    return learner, 0


async def _resume(training: Training) -> tuple[Learner, int]:
    """From the newest checkpoint that the server still has; steps after it are replayed from the store."""
    for checkpoint in reversed(training.run.checkpoints()):
        try:
            learner = await Learner.resumed(training.service, training.config, training.meter, checkpoint)
        except (tinker.RequestFailedError, tinker.NotFoundError) as error:
            reason = str(error).strip().partition("\n")[0]
            training.progress.note(f"Checkpoint {checkpoint.name} is gone ({reason}): taking the one before.")
            continue
        await learner.require_loss()
        training.progress.note(f"Going on from checkpoint {checkpoint.name}.")
        return learner, checkpoint.step
    raise CheckpointsGoneError(
        f"The server has none of the checkpoints of {training.run.name} any more, so it cannot go on: "
        "start a new run, with a longer checkpoint_ttl_hours."
    )


async def _evaluate(training: Training, learner: Learner, name: str, step: int) -> None:
    with timed_phase(training.run, f"eval-{name}"):
        sampler = await learner.sampler(training.stop_tokens)
        await training.evaluate(name, step, sampler, training.progress)


async def _teaching(training: Training, learner: Learner) -> Teaching:
    """How lessons are taught; whose logprobs are the old ones at this temperature is recorded."""
    prompt = training.renderer.render_ids([{"role": "user", "content": "ls"}], add_generation_prompt=True)
    whose = await learner.whose_logprobs(list(prompt))
    training.run.record_fact("old_logprobs", whose)
    reference = await Reference.make(training.service, training.config, training.meter)
    return Teaching(learner, training.config, reference, whose)


def _curriculum(training: Training, first_step: int) -> Curriculum:
    """The curriculum as it was when the step began: what the run began with, and all it trained on since."""
    run, config = training.run, training.config
    if config.curriculum == "off":
        return Curriculum(training.tasks, config)
    if run.fact(PRIOR) is None:
        found = read_pass_rates(Path(config.run_root), config.model_name)
        run.record_fact(PRIOR, {name: [rate.solved, rate.scored] for name, rate in found.items()})
    prior = {name: PassRate(*rate) for name, rate in run.fact(PRIOR).items()}
    curriculum = Curriculum(training.tasks, config, prior)
    groups = run.ledger.groups()
    members: dict[tuple[int, int], list[Rollout]] = {}
    for place, rollout in run.rollouts(STAGE, with_turns=False).items():
        members.setdefault((place.step, place.group), []).append(rollout)
    for number, step in run.ledger.batches().items():
        if step < first_step:
            curriculum.learn(groups[number].task_name, members[divmod(number, config.batch_size)])
    return curriculum


def _results(run: Run) -> dict[str, tuple[int, int]]:
    """Solved and scored attempts by task, over all that was trained on."""
    results: dict[str, tuple[int, int]] = {}
    for rollout in run.rollouts(STAGE, with_turns=False).values():
        solved, scored = results.get(rollout.task_name, (0, 0))
        results[rollout.task_name] = (solved + rollout.solved, scored + rollout.outcome.scored)
    return results


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
