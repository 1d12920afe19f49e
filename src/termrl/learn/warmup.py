"""Supervised warm-up: demonstrations from the tasks' own reference solutions, then cross-entropy on them.

The demonstrations are real rollouts: the reference commands are typed through the agent into a sandbox, and
only what the verifier rewards is learned from, so the prompts are exactly those the policy will see. Off
unless asked for.
"""

from collections.abc import Sequence
from random import Random

import tinker

from termrl.config import TrainConfig
from termrl.errors import UserError
from termrl.learn.datums import supervised_datum
from termrl.learn.demonstrations import demonstration
from termrl.learn.learner import Learner
from termrl.learn.progress import Progress
from termrl.learn.training import Training
from termrl.policy.scripted import ScriptedSampler
from termrl.policy.transcript import segments_of
from termrl.rollout.collect import Attempt, collect
from termrl.rollout.record import Rollout
from termrl.store import Place
from termrl.tasks import HarborTask, reference_commands

STAGE = "demonstrations"


class NoDemonstrationsError(UserError):
    """Warm-up was asked for, and there is nothing to demonstrate."""


def demonstrated_tasks(tasks: Sequence[HarborTask], config: TrainConfig) -> list[HarborTask]:
    """The tasks whose solutions are shown, drawn evenly over their families."""
    families = config.warmup.families
    by_family: dict[str, list[HarborTask]] = {}
    for task in tasks:
        by_family.setdefault(family_of(task), []).append(task)
    if families is not None:
        unknown = sorted(set(families) - set(by_family))
        if unknown:
            raise NoDemonstrationsError(
                f"warmup.families names {', '.join(unknown)}, but the training tasks have only the families "
                f"{', '.join(sorted(by_family))}."
            )
        by_family = {family: by_family[family] for family in families}
    rng = Random(f"{config.seed}/demonstrations")
    for members in by_family.values():
        rng.shuffle(members)
    rounds = max(map(len, by_family.values()))
    in_turn = [members[i] for i in range(rounds) for members in by_family.values() if i < len(members)]
    return in_turn[: config.warmup.n_demonstrations]


def family_of(task: HarborTask) -> str:
    """The family a task says it is of; tasks that say nothing are one family."""
    return str(task.config.metadata.get("family", ""))


async def make_demonstrations(training: Training) -> list[Rollout]:
    """The solved demonstrations of the chosen tasks, each run once and kept in the store."""
    config, pool, progress = training.config, training.pool, training.progress
    chosen = demonstrated_tasks(training.tasks, config)
    attempts = [
        Attempt(
            Place(STAGE, 0, index, 0),
            task,
            ScriptedSampler(demonstration(reference_commands(task)), training.tokenizer, training.renderer),
        )
        for index, task in enumerate(chosen)
    ]
    progress.phase("demonstrations", len(attempts))
    rollouts = await collect(
        training.run,
        pool,
        attempts,
        seed=config.seed,
        finished=lambda _: progress.advance(sandboxes=pool.in_flight),
    )
    solved = [rollout for rollout in rollouts.values() if rollout.solved]
    if not solved:
        raise NoDemonstrationsError(
            f"None of the {len(chosen)} demonstrations was rewarded by its task's tests: "
            "check the tasks' solutions."
        )
    return solved


async def imitate(
    learner: Learner, demonstrations: Sequence[Rollout], config: TrainConfig, progress: Progress
) -> None:
    """Epochs over the demonstrations in minibatches, the learning rate falling in a line to nothing."""
    datums = [
        supervised_datum(segment) for rollout in demonstrations for segment in segments_of(rollout.turns)
    ]
    size = config.warmup.batch_size
    batches: list[list[tinker.Datum]] = []
    for epoch in range(config.warmup.epochs):
        order = list(range(len(datums)))
        Random(f"{config.seed}/warmup/{epoch}").shuffle(order)
        batches += [[datums[i] for i in order[at : at + size]] for at in range(0, len(order), size)]
    progress.phase("warm-up", len(batches))
    for index, batch in enumerate(batches):
        rate = config.warmup.learning_rate * (1 - index / len(batches))
        weights = sum(float(datum.loss_fn_inputs["weights"].to_numpy().sum()) for datum in batch)
        metrics = await learner.supervise(batch, tinker.AdamParams(learning_rate=rate))
        progress.advance(loss=metrics["loss:sum"] / max(weights, 1.0))
