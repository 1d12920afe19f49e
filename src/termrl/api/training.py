"""The rooms wired together for a training run, and for the estimate of one."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chz
import tinker

from termrl.api.parts import (
    checked_model,
    context_limit,
    open_run,
    record_choices,
    rollout_settings,
    service_for,
    with_snapshots,
)
from termrl.config import RolloutConfig, TrainConfig
from termrl.engine.catalog import resolve_model
from termrl.engine.process import PreparedEngine
from termrl.evaluate.held_out import evaluate_tasks
from termrl.evaluate.summary import EVALUATION_STAGE, summarize
from termrl.learn.estimate import Estimate, estimate_step
from termrl.learn.losses import check_loss
from termrl.learn.meter import Meter
from termrl.learn.order import nth_task, planned_steps
from termrl.learn.prices import read_prices
from termrl.learn.progress import Progress, Silent
from termrl.learn.rehearsal import rehearse
from termrl.learn.selection import refuse_overlap, select_tasks, split_tasks
from termrl.learn.stop import Stop
from termrl.learn.train import train_run
from termrl.learn.training import Evaluate, Training
from termrl.learn.warmup import demonstrated_tasks, family_of
from termrl.observe.metrics import MetricsFile, MetricSink
from termrl.observe.wandb import WandbSink, require_wandb, wants_wandb
from termrl.policy.rendering import Renderer
from termrl.policy.sampler import Sampler
from termrl.rollout.pool import RolloutPool
from termrl.rollout.runner import RolloutRunner
from termrl.sandbox.choice import choose_backend, environment_settings, make_ready
from termrl.sandbox.interface import SandboxFactory
from termrl.sandbox.labels import labelled_run
from termrl.store import Run
from termrl.tasks import HarborTask
from termrl.tasks.usable import usable_tasks

HELD_OUT = "held_out"
HELD_OUT_FAMILIES = "held_out_families"


async def train(
    config: TrainConfig,
    *,
    progress: Progress | None = None,
    stop: Stop | None = None,
    sandbox_factory: SandboxFactory | None = None,
    engine: PreparedEngine | None = None,
) -> dict[str, Any]:
    """Trains, or goes on with the run of that name; gives what `termrl runs show --json` prints.

    A run that reaches a limit, or that `stop` asks to end, raises the reason once all of it is stored.
    `sandbox_factory` makes the sandboxes, instead of the backend that `environment_type` names; `engine` is
    the process that the embedded engine is to run in, where one was prepared.
    """
    progress, stop = progress or Silent(), stop or Stop()
    progress.phase("loading", None)
    model = checked_model(config)
    check_loss(config)
    require_wandb(config.wandb)
    prices = read_prices(config)
    tasks, held_out = _tasks(config, progress)
    if config.warmup.enabled:
        demonstrated_tasks(tasks, config)  # A family that there is none of is refused before anything runs.
    every_task = [*tasks, *(task for members in held_out.values() for task in members)]
    backend = choose_backend(config, sandbox_factory)
    make_ready(backend, every_task)
    with open_run(config) as run, labelled_run(run.path.name):
        record_choices(run, config, model)
        sinks: list[MetricSink] = [MetricsFile(run.path / "metrics.jsonl", run.steps())]
        if wants_wandb(config.wandb):
            sinks.append(WandbSink(config, run.settings, run.path))

        def log(step: int, metrics: dict[str, Any]) -> None:
            for sink in sinks:
                sink.log(step, metrics)

        try:
            async with service_for(
                config, run.path / "engine", run.path / "engine.log", prepared=engine
            ) as service:
                backend = await with_snapshots(config, backend, every_task, progress)
                where = environment_settings(backend, every_task)
                pool = await _pool(config, service, model.renderer, run, where)
                training = Training(
                    run=run,
                    config=config,
                    service=service,
                    pool=pool,
                    tasks=tasks,
                    tokenizer=model.tokenizer,
                    renderer=model.renderer,
                    steps=planned_steps(config, len(tasks)),
                    meter=Meter(run, config, prices, pool, stop),
                    stop=stop,
                    progress=progress,
                    evaluate=_evaluation(run, pool, held_out, config),
                    log=log,
                )
                await train_run(training)
        finally:
            for sink in sinks:
                sink.close()
        return summarize(run)


def _tasks(config: TrainConfig, progress: Progress) -> tuple[list[HarborTask], dict[str, list[HarborTask]]]:
    """The tasks to train on, and the sets of those held out."""
    tasks, split = split_tasks(select_tasks(_usable(config, config.dataset, progress), config), config)
    sources = {HELD_OUT: config.eval_dataset, HELD_OUT_FAMILIES: config.eval_dataset_families}
    held_out = {
        name: _usable(config, source, progress)
        for name, source in sources.items()
        if source is not None and split is None
    }
    if split is not None:
        held_out = {HELD_OUT: split}
    for members in held_out.values():
        refuse_overlap(tasks, members)
    if config.warmup.enabled:
        demonstrated_tasks(tasks, config)
    return tasks, {name: members[: config.eval_n_tasks] for name, members in held_out.items()}


def _usable(config: RolloutConfig, source: str, progress: Progress) -> list[HarborTask]:
    """The tasks of a dataset that this run may use; the progress hears of those that are left out."""
    return usable_tasks(
        source,
        run_root=Path(config.run_root).expanduser(),
        on_bad_task=config.on_bad_task,
        quarantine=config.quarantine,
        note=progress.note,
    )


async def _pool(
    config: RolloutConfig,
    service: tinker.ServiceClient,
    renderer: Renderer,
    run: Run,
    where: Mapping[str, Any],
) -> RolloutPool:
    limit = await context_limit(config, service)
    run.record_fact("context_limit", limit)
    settings = rollout_settings(config, limit, run.path / "trials", where)
    runner = RolloutRunner(settings, renderer)
    return RolloutPool(runner, concurrency=config.n_parallel_envs, prewarm=config.prewarm)


def _evaluation(
    run: Run,
    pool: RolloutPool,
    held_out: dict[str, list[HarborTask]],
    config: TrainConfig,
) -> Evaluate:
    tasks = [task for members in held_out.values() for task in members]
    set_of = {task.task_name: name for name, members in held_out.items() for task in members}

    async def evaluate_held_out(name: str, step: int, sampler: Sampler, progress: Progress) -> None:
        await evaluate_tasks(
            run,
            pool,
            tasks,
            sampler,
            stage=EVALUATION_STAGE + name,
            step=step,
            attempts=config.eval_attempts,
            seed=config.seed,
            tags=lambda task: {"set": set_of[task.task_name], "family": family_of(task)},
            progress=progress,
        )

    return evaluate_held_out


async def dry_run(config: TrainConfig, *, progress: Progress | None = None) -> Estimate:
    """Checks all that a run would need and estimates a step, asking no model and making no run.

    Sandboxes that cost money are stood in for by local ones.
    """
    progress = progress or Silent()
    progress.phase("checking", None)
    model = checked_model(config)
    check_loss(config)
    require_wandb(config.wandb)
    prices = read_prices(config)
    tasks, _ = _tasks(config, progress)
    context = await _known_context(config)
    free = config if prices.sandbox_hour == 0 else chz.replace(config, environment_type="local")
    chosen = [nth_task(tasks, seed=config.seed, number=number) for number in range(min(4, len(tasks)))]
    backend = choose_backend(free)
    make_ready(backend, chosen)
    with tempfile.TemporaryDirectory(prefix="termrl-dry-run-") as directory:
        where = environment_settings(backend, chosen)
        settings = rollout_settings(free, context, Path(directory), where)
        pool = RolloutPool(RolloutRunner(settings, model.renderer), concurrency=config.n_parallel_envs)
        rollouts = await rehearse(chosen, pool, model.tokenizer, model.renderer, progress)
    return estimate_step(rollouts, config, prices, context, planned_steps(config, len(tasks)))


async def _known_context(config: TrainConfig) -> int:
    """The context of the model, from its server or, for the embedded engine, from its own settings."""
    if config.base_url is not None:
        with tinker.ServiceClient(base_url=config.base_url) as service:
            return await context_limit(config, service)
    settings = json.loads((resolve_model(config.model_name) / "config.json").read_text())
    return config.context_limit or int(settings["max_position_embeddings"])
