"""The rooms wired together: a training run and an evaluation, from settings to what they came to.

Everything that can be wrong with the input is found out before a run is made; everything that is started
(the engine, sandboxes) is ended with it. This is what the command line calls and what `from termrl import
train, evaluate` gives.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz
import tinker

from termrl.cache import cache_directory
from termrl.config import EvalConfig, RolloutConfig, TrainConfig
from termrl.engine.catalog import resolve_model
from termrl.engine.process import start_engine
from termrl.errors import UserError
from termrl.evaluate.held_out import evaluate_tasks, rate_of
from termrl.evaluate.intervals import Rate
from termrl.evaluate.summary import EVALUATION_STAGE, summarize
from termrl.learn.progress import Progress, Silent
from termrl.learn.train import Evaluate, timed_phase, train_run
from termrl.learn.warmup import demonstrated_tasks, family_of
from termrl.observe.metrics import MetricsFile
from termrl.policy.rendering import Renderer, make_renderer
from termrl.policy.sampler import Sampler, TinkerSampler
from termrl.policy.tokenizer import Tokenizer, load_tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.settings import RolloutSettings
from termrl.sandbox.preflight import require_local
from termrl.settings import to_dict
from termrl.store import Run, find_run
from termrl.store.run import DATABASE
from termrl.tasks import HarborTask, load_harbor_tasks

HELD_OUT = "held_out"
HELD_OUT_FAMILIES = "held_out_families"


class MissingKeyError(UserError):
    """A service was named whose key is not there."""


class RunExistsError(UserError):
    """The run is there already and was not to be gone on with."""


@dataclass(frozen=True)
class EvalResult:
    """The solve rate with its interval and denominators, every rollout, and the run that keeps them."""

    rate: Rate
    excluded: int
    rollouts: Sequence[Rollout]
    run_path: Path


@dataclass(frozen=True)
class _Model:
    tokenizer: Tokenizer
    renderer: Renderer


async def train(config: TrainConfig, *, progress: Progress | None = None) -> dict[str, Any]:
    """Trains, or goes on with the run of that name; gives what `termrl runs show --json` prints."""
    progress = progress or Silent()
    progress.phase("loading", None)
    model = _check(config)
    tasks = load_harbor_tasks(config.dataset)
    if config.warmup.enabled:
        demonstrated_tasks(tasks, config)
    held_out = _held_out_tasks(config)
    with _open_run(config) as run:
        metrics = MetricsFile(run.path / "metrics.jsonl", run.steps())
        try:
            async with _service(config, run.path / "engine", run.path / "engine.log") as service:
                pool = await _pool(config, service, model.renderer, run.path)
                evaluate_held_out = _evaluation(run, pool, held_out, config, progress)
                await train_run(
                    run,
                    config,
                    service,
                    pool,
                    tasks,
                    model.tokenizer,
                    model.renderer,
                    evaluate=evaluate_held_out,
                    log=metrics.log,
                    progress=progress,
                )
        finally:
            metrics.close()
        return summarize(run)


async def evaluate(config: EvalConfig, *, progress: Progress | None = None) -> EvalResult:
    """Attempts every task of a dataset with a model, or with a checkpoint of it."""
    progress = progress or Silent()
    progress.phase("loading", None)
    model = _check(config)
    tasks = load_harbor_tasks(config.dataset)[: config.n_tasks]
    checkpoint, state = _checkpoint(config)
    with _open_run(config) as run:
        async with _service(config, state or run.path / "engine", run.path / "engine.log") as service:
            client = await service.create_sampling_client_async(
                model_path=checkpoint, base_model=None if checkpoint else config.model_name
            )
            sampler = TinkerSampler(
                client,
                policy_version=0,
                stop=model.renderer.get_stop_token_ids(),
                temperature=config.temperature,
            )
            pool = await _pool(config, service, model.renderer, run.path)
            with timed_phase(run, "eval"):
                rollouts = await evaluate_tasks(
                    run,
                    pool,
                    tasks,
                    sampler,
                    stage="eval",
                    attempts=config.attempts,
                    seed=config.seed,
                    progress=progress,
                )
        excluded = sum(not rollout.outcome.scored for rollout in rollouts)
        return EvalResult(rate_of(rollouts), excluded, rollouts, run.path)


def new_run_name(run_root: Path, model_name: str) -> str:
    """A name by date and model that no run has yet."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(model_name).name}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 1000))]
    return next(name for name in names if not (run_root / name).exists())


def _check(config: RolloutConfig) -> _Model:
    """Refuses what could not work, and opens the tokenizer."""
    logging.getLogger().setLevel(config.log_level.upper())
    if config.environment_type == "local":
        require_local()
    if config.base_url is not None and not os.environ.get("TINKER_API_KEY"):
        raise MissingKeyError(
            f"base_url is {config.base_url} but there is no TINKER_API_KEY: put it into .env."
        )
    source: Path | str = config.model_name
    if config.base_url is None or config.model_name == "termrl/tiny":
        source = resolve_model(config.model_name, say=print)
    tokenizer = load_tokenizer(source)
    return _Model(tokenizer, make_renderer(tokenizer, config.model_name))


def _held_out_tasks(config: TrainConfig) -> dict[str, list[HarborTask]]:
    sources = {HELD_OUT: config.eval_dataset, HELD_OUT_FAMILIES: config.eval_dataset_families}
    return {
        name: load_harbor_tasks(source)[: config.eval_n_tasks]
        for name, source in sources.items()
        if source is not None
    }


def _open_run(config: RolloutConfig) -> Run:
    run_root = Path(config.run_root).expanduser()
    path = run_root / (config.run_name or new_run_name(run_root, config.model_name))
    kind = "train" if isinstance(config, TrainConfig) else "eval"
    if not (path / DATABASE).exists():
        return Run.create(path, kind=kind, settings=to_dict(chz.replace(config, run_name=path.name)))
    if config.behavior_if_run_exists == "raise":
        raise RunExistsError(f"The run {path} is there already: give another run_name, or go on with it.")
    return Run.open(path, write=True)


def _checkpoint(config: EvalConfig) -> tuple[str | None, Path | None]:
    """The weights to sample from and, where a run's own engine holds them, that engine's state."""
    if config.checkpoint_url is None or config.checkpoint_url.startswith("tinker://"):
        return config.checkpoint_url, None
    path = find_run(config.checkpoint_url, Path(config.run_root).expanduser())
    with Run.open(path) as run:
        checkpoints = run.checkpoints()
    if not checkpoints:
        raise UserError(f"The run {path} has no checkpoint yet: give another one, or a tinker:// path.")
    return checkpoints[-1].sampler_path, path / "engine"


@asynccontextmanager
async def _service(config: RolloutConfig, state: Path, log: Path) -> AsyncIterator[tinker.ServiceClient]:
    """The Tinker server that was named, or the embedded engine for as long as it is needed."""
    if config.base_url is not None:
        with tinker.ServiceClient(base_url=config.base_url) as service:
            yield service
        return
    async with start_engine(
        state, models=(config.model_name,), log_path=log, cache_dir=cache_directory() / "compiled"
    ) as engine:
        with tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as service:
            yield service


async def _pool(
    config: RolloutConfig, service: tinker.ServiceClient, renderer: Renderer, run_path: Path
) -> RolloutPool:
    limit = config.context_limit
    if limit is None:
        served = await service.get_server_capabilities_async()
        limits = {model.model_name: model.max_context_length for model in served.supported_models}
        limit = limits.get(config.model_name)
    if limit is None:
        raise UserError(
            f"The server does not say how long {config.model_name}'s context is: set context_limit."
        )
    settings = RolloutSettings(
        model_name=config.model_name,
        trials_dir=run_path / "trials",
        max_turns=config.max_turns,
        max_tokens=config.max_tokens,
        context_limit=limit,
        enable_summarize=config.enable_summarize,
        proactive_summarization_threshold=config.proactive_summarization_threshold,
        environment=config.environment_type,
        keep_trials=config.keep_trials,
    )
    return RolloutPool(RolloutRunner(settings, renderer), concurrency=config.n_parallel_envs)


def _evaluation(
    run: Run,
    pool: RolloutPool,
    held_out: dict[str, list[HarborTask]],
    config: TrainConfig,
    progress: Progress,
) -> Evaluate:
    tasks = [task for members in held_out.values() for task in members]
    set_of = {task.task_name: name for name, members in held_out.items() for task in members}

    async def evaluate_held_out(name: str, step: int, sampler: Sampler) -> None:
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
