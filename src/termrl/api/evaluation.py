"""The rooms wired together for an evaluation: whoever is asked, and what it is asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import chz

from termrl.api.parts import (
    Model,
    checked_model,
    context_limit,
    open_run,
    record_choices,
    rollout_settings,
    service_for,
    with_snapshots,
)
from termrl.config import EvalConfig
from termrl.evaluate.checkpoint import local_checkpoint, require_remote_checkpoint
from termrl.evaluate.evaluation import combine, plan_evaluation, run_evaluation
from termrl.evaluate.going_on import slug
from termrl.evaluate.results import EvalResult
from termrl.learn.prices import model_prices
from termrl.learn.progress import Progress, Silent
from termrl.policy.chat import UNKNOWN_LIMIT, ChatSampler, NoModel
from termrl.policy.rendering import Renderer
from termrl.policy.sampler import Sampler, TinkerSampler
from termrl.policy.service import Service, ServiceUnclearError, choose_service, require_reachable
from termrl.policy.tokenizer import Tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.rollout.runner import RolloutRunner
from termrl.sandbox.choice import choose_backend, environment_settings, make_ready
from termrl.sandbox.interface import SandboxFactory
from termrl.sandbox.labels import labelled_run

UNASKING = ("oracle", "nop")
"""Harbor's agents that ask no model."""


async def evaluate(
    config: EvalConfig,
    sandbox_factory: SandboxFactory | None = None,
    *,
    progress: Progress | None = None,
) -> EvalResult:
    """Attempts every chosen task of a dataset, or of each benchmark, with a model or a checkpoint of it.

    The same settings again go on with what is stored and run only what is missing or was excluded.
    `sandbox_factory` makes the sandboxes, instead of the backend that `environment_type` names.
    """
    progress = progress or Silent()
    parts = [await _evaluate_one(one, sandbox_factory, progress) for one in _by_benchmark(config)]
    return parts[0] if len(parts) == 1 else combine(tuple(parts), config)


def _by_benchmark(config: EvalConfig) -> list[EvalConfig]:
    """The evaluation of each benchmark by itself, with a place for its results of its own."""
    if config.benchmarks is None:
        return [config]
    single = len(config.benchmarks) == 1
    return [
        chz.replace(
            config,
            benchmarks=None,
            dataset=name,
            run_name=config.run_name if single or not config.run_name else f"{config.run_name}-{slug(name)}",
            output_path=config.output_path
            if single or not config.output_path
            else str(Path(config.output_path) / slug(name)),
        )
        for name in config.benchmarks
    ]


async def _evaluate_one(
    config: EvalConfig, sandbox_factory: SandboxFactory | None, progress: Progress
) -> EvalResult:
    progress.phase("loading", None)
    plan = plan_evaluation(config, progress)
    config, tasks = plan.config, [one.task for one in plan.chosen]
    service = _service_of(config)
    model = checked_model(config, service)
    prices = model_prices(config.model_name, config.prices)
    if config.base_url is not None and service is not Service.NONE:
        await require_reachable(config.base_url)
    checkpoint, state = await _checkpoint(config, service)
    backend = choose_backend(config, sandbox_factory)
    make_ready(backend, tasks)
    plan.files.prepare()
    with open_run(config) as run, labelled_run(run.path.name):
        record_choices(run, config, model)
        state = state or run.path / "engine"
        async with _evaluated(config, service, model, checkpoint, state, run.path / "engine.log") as who:
            backend = await with_snapshots(config, backend, tasks, progress)
            where = environment_settings(backend, tasks, timeout_multiplier=config.timeout_multiplier)
            run.record_fact("context_limit", who.context_limit)
            settings = rollout_settings(config, who.context_limit, run.path / "trials", where)
            runner = RolloutRunner(settings, who.renderer)
            try:
                return await run_evaluation(
                    plan,
                    run,
                    RolloutPool(runner, concurrency=config.n_parallel_envs, prewarm=config.prewarm),
                    who.sampler,
                    tokenizer=who.tokenizer,
                    service=service.value,
                    progress=progress,
                    prices=prices,
                )
            finally:
                await runner.close()


def _service_of(config: EvalConfig) -> Service:
    if config.agent in UNASKING:
        return Service.NONE
    return choose_service(
        config.model_name,
        chosen=config.model_service,
        base_url=config.base_url,
        checkpoint_url=config.checkpoint_url,
    )


async def _checkpoint(config: EvalConfig, service: Service) -> tuple[str | None, Path | None]:
    """The weights to sample from and, where a run's own engine holds them, that engine's state."""
    if config.checkpoint_url is None or service is Service.NONE:
        return None, None
    if service is Service.LITELLM:
        raise ServiceUnclearError(
            f"checkpoint_url is {config.checkpoint_url}, and litellm knows no checkpoints: leave it out, or "
            "say model_service=tinker."
        )
    if service is Service.ENGINE:
        found = local_checkpoint(config.checkpoint_url, config.model_name, Path(config.run_root).expanduser())
        return found.path, found.state
    await require_remote_checkpoint(config.checkpoint_url, config.model_name, base_url=config.base_url)
    return config.checkpoint_url, None


@dataclass(frozen=True)
class _Evaluated:
    """Whoever is evaluated, ready to be asked; `tokenizer` reads what was said, where it was in tokens."""

    sampler: Sampler
    renderer: Renderer
    context_limit: int
    tokenizer: Tokenizer | None


@asynccontextmanager
async def _evaluated(
    config: EvalConfig, service: Service, model: Model, checkpoint: str | None, state: Path, log: Path
) -> AsyncIterator[_Evaluated]:
    """Starts what is needed to ask the model, for as long as it is asked."""
    if service is Service.NONE:
        yield _Evaluated(NoModel(), model.renderer, config.context_limit or UNKNOWN_LIMIT, None)
        return
    if service is Service.LITELLM:
        chat = ChatSampler(config.model_name, base_url=config.base_url, temperature=config.temperature)
        yield _Evaluated(chat, model.renderer, config.context_limit or chat.context_limit(), None)
        return
    async with service_for(config, state, log, service) as client:
        weights = await client.create_sampling_client_async(
            model_path=checkpoint, base_model=None if checkpoint else config.model_name
        )
        sampler = TinkerSampler(
            weights,
            policy_version=0,
            stop=model.renderer.get_stop_token_ids(),
            temperature=config.temperature,
        )
        limit = await context_limit(config, client)
        yield _Evaluated(sampler, model.renderer, limit, model.tokenizer)
