"""The rooms wired together: a training run and an evaluation, from settings to what they came to.

Everything that can be wrong with the input is found out before a run is made; everything that is started
(the engine, sandboxes) is ended with it. This is what the command line calls and what `from termrl import
train, evaluate` gives.
"""

import json
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz
import tinker

from termrl.agents.choice import import_path_of
from termrl.agents.tools import tools_of
from termrl.cache import cache_directory
from termrl.config import EvalConfig, RolloutConfig, TrainConfig
from termrl.engine.catalog import resolve_model
from termrl.engine.process import start_engine
from termrl.errors import UserError
from termrl.evaluate.checkpoint import local_checkpoint, require_remote_checkpoint
from termrl.evaluate.evaluation import combine, plan_evaluation, run_evaluation
from termrl.evaluate.going_on import slug
from termrl.evaluate.held_out import evaluate_tasks
from termrl.evaluate.results import EvalResult
from termrl.evaluate.summary import EVALUATION_STAGE, summarize
from termrl.learn.estimate import Estimate, estimate_step
from termrl.learn.losses import check_loss
from termrl.learn.meter import Meter
from termrl.learn.order import nth_task, planned_steps
from termrl.learn.prices import Prices, model_prices, read_prices
from termrl.learn.progress import Progress, Silent
from termrl.learn.rehearsal import rehearse
from termrl.learn.resume import RunExistsError, free_name
from termrl.learn.selection import refuse_overlap, select_tasks, split_tasks
from termrl.learn.stop import Stop
from termrl.learn.train import train_run
from termrl.learn.training import Evaluate, Training
from termrl.learn.warmup import demonstrated_tasks, family_of
from termrl.observe.metrics import MetricsFile, MetricSink
from termrl.observe.wandb import WandbSink, require_wandb, wants_wandb
from termrl.policy.chat import UNKNOWN_LIMIT, ChatSampler, NoModel
from termrl.policy.rendering import Renderer, RendererChoice, choose_renderer
from termrl.policy.sampler import Sampler, TinkerSampler
from termrl.policy.service import Service, ServiceUnclearError, choose_service, require_key, require_reachable
from termrl.policy.tokenizer import Tokenizer, load_tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.rollout.replay import ReplayReport, replay
from termrl.rollout.reward import RewardRule, load_reward_function
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.settings import RolloutSettings
from termrl.sandbox.backends import Backend
from termrl.sandbox.choice import choose_backend, environment_settings, make_ready, start_from_snapshots
from termrl.sandbox.interface import SandboxFactory
from termrl.sandbox.labels import labelled_run
from termrl.settings import to_dict
from termrl.store import Place, Run
from termrl.store.run import DATABASE
from termrl.tasks import HarborTask, load_harbor_tasks
from termrl.tasks.usable import usable_tasks

_log = logging.getLogger(__name__)

HELD_OUT = "held_out"
HELD_OUT_FAMILIES = "held_out_families"

UNASKING = ("oracle", "nop")
"""Harbor's agents that ask no model."""

TERMINUS_2_LIMIT = 16_384
"""Tokens in an answer beyond which Terminus-2 throws all of it away."""


@dataclass(frozen=True)
class _Model:
    tokenizer: Tokenizer
    choice: RendererChoice

    @property
    def renderer(self) -> Renderer:
        return self.choice.renderer


async def train(
    config: TrainConfig,
    *,
    progress: Progress | None = None,
    stop: Stop | None = None,
    sandbox_factory: SandboxFactory | None = None,
) -> dict[str, Any]:
    """Trains, or goes on with the run of that name; gives what `termrl runs show --json` prints.

    A run that reaches a limit, or that `stop` asks to end, raises the reason once all of it is stored.
    `sandbox_factory` makes the sandboxes, instead of the backend that `environment_type` names.
    """
    progress, stop = progress or Silent(), stop or Stop()
    progress.phase("loading", None)
    model = _check(config)
    check_loss(config)
    require_wandb(config.wandb)
    prices = read_prices(config)
    tasks, held_out = _tasks(config, progress)
    every_task = [*tasks, *(task for members in held_out.values() for task in members)]
    backend = choose_backend(config, sandbox_factory)
    make_ready(backend, every_task)
    with _open_run(config) as run, labelled_run(run.path.name):
        _record(run, config, model)
        sinks: list[MetricSink] = [MetricsFile(run.path / "metrics.jsonl", run.steps())]
        if wants_wandb(config.wandb):
            sinks.append(WandbSink(config, run.settings, run.path))

        def log(step: int, metrics: dict[str, Any]) -> None:
            for sink in sinks:
                sink.log(step, metrics)

        try:
            async with _service(config, run.path / "engine", run.path / "engine.log") as service:
                backend = await _with_snapshots(config, backend, every_task, progress)
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


async def dry_run(config: TrainConfig, *, progress: Progress | None = None) -> Estimate:
    """Checks all that a run would need and estimates a step, asking no model and making no run.

    Sandboxes that cost money are stood in for by local ones.
    """
    progress = progress or Silent()
    progress.phase("checking", None)
    model = _check(config)
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
        settings = _rollout_settings(free, context, Path(directory), where)
        pool = RolloutPool(RolloutRunner(settings, model.renderer), concurrency=config.n_parallel_envs)
        rollouts = await rehearse(chosen, pool, model.tokenizer, model.renderer, progress)
    return estimate_step(rollouts, config, prices, context, planned_steps(config, len(tasks)))


async def _known_context(config: TrainConfig) -> int:
    """The context of the model, from its server or, for the embedded engine, from its own settings."""
    if config.base_url is not None:
        with tinker.ServiceClient(base_url=config.base_url) as service:
            return await _context_limit(config, service)
    settings = json.loads((resolve_model(config.model_name) / "config.json").read_text())
    return config.context_limit or int(settings["max_position_embeddings"])


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


@dataclass(frozen=True)
class _Evaluated:
    """Whoever is evaluated, ready to be asked; `tokenizer` reads what was said, where it was in tokens."""

    sampler: Sampler
    renderer: Renderer
    context_limit: int
    tokenizer: Tokenizer | None


async def _evaluate_one(
    config: EvalConfig, sandbox_factory: SandboxFactory | None, progress: Progress
) -> EvalResult:
    progress.phase("loading", None)
    plan = plan_evaluation(config, progress)
    config, tasks = plan.config, [one.task for one in plan.chosen]
    service = _service_of(config)
    model = _check(config, service)
    if config.base_url is not None and service is not Service.NONE:
        await require_reachable(config.base_url)
    checkpoint, state = await _checkpoint(config, service)
    backend = choose_backend(config, sandbox_factory)
    make_ready(backend, tasks)
    plan.files.prepare()
    with _open_run(config) as run, labelled_run(run.path.name):
        _record(run, config, model)
        state = state or run.path / "engine"
        async with _evaluated(config, service, model, checkpoint, state, run.path / "engine.log") as who:
            backend = await _with_snapshots(config, backend, tasks, progress)
            where = environment_settings(backend, tasks, timeout_multiplier=config.timeout_multiplier)
            run.record_fact("context_limit", who.context_limit)
            settings = _rollout_settings(config, who.context_limit, run.path / "trials", where)
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
                    prices=model_prices(config.model_name, config.prices)
                    if service is Service.TINKER
                    else Prices(),
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


@asynccontextmanager
async def _evaluated(
    config: EvalConfig, service: Service, model: _Model, checkpoint: str | None, state: Path, log: Path
) -> AsyncIterator[_Evaluated]:
    """Starts what is needed to ask the model, for as long as it is asked."""
    if service is Service.NONE:
        yield _Evaluated(NoModel(), model.renderer, config.context_limit or UNKNOWN_LIMIT, None)
        return
    if service is Service.LITELLM:
        chat = ChatSampler(config.model_name, base_url=config.base_url, temperature=config.temperature)
        yield _Evaluated(chat, model.renderer, config.context_limit or chat.context_limit(), None)
        return
    async with _service(config, state, log, service) as client:
        weights = await client.create_sampling_client_async(
            model_path=checkpoint, base_model=None if checkpoint else config.model_name
        )
        sampler = TinkerSampler(
            weights,
            policy_version=0,
            stop=model.renderer.get_stop_token_ids(),
            temperature=config.temperature,
        )
        limit = await _context_limit(config, client)
        yield _Evaluated(sampler, model.renderer, limit, model.tokenizer)


async def replay_stored(run_path: Path, which: str) -> ReplayReport:
    """Gives the answers of a stored rollout again, in a sandbox like the one it had."""
    with Run.open(run_path) as run:
        settings = run.settings
        config = _rollout_config(run.kind, settings)
        place = _place(which)
        rollout = run.rollouts(place.stage, place.step).get(place)
        limit = run.fact("context_limit") or config.context_limit
    if rollout is None:
        raise UserError(
            f"The run {run_path} has no rollout {which}: `termrl replay {run_path.name}` lists them all."
        )
    sources = (settings.get(key) for key in ("dataset", "eval_dataset", "eval_dataset_families"))
    tasks = (task for source in sources if source for task in load_harbor_tasks(source))
    task = next((task for task in tasks if task.task_name == rollout.task_name), None)
    if task is None:
        raise UserError(f"The task {rollout.task_name} is not in the run's datasets any more.")
    model = _check(config)
    backend = choose_backend(config, None)
    make_ready(backend, [task])
    where = environment_settings(backend, [task])
    with tempfile.TemporaryDirectory(prefix="termrl-replay-") as trials:
        longest = max((turn.end for turn in rollout.turns), default=0)
        roomy = limit or longest + config.max_tokens
        runner = RolloutRunner(_rollout_settings(config, roomy, Path(trials), where), model.renderer)
        try:
            return await replay(runner, task, rollout, model.tokenizer)
        finally:
            await runner.close()


def _place(which: str) -> Place:
    stage, *numbers = which.rsplit("/", 3)
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        raise UserError(
            f"'{which}' is not a rollout: it is named STAGE/STEP/GROUP/MEMBER, such as train/0/0/0."
        )
    step, group, member = map(int, numbers)
    return Place(stage, step, group, member)


def _rollout_config(kind: str, settings: dict[str, Any]) -> RolloutConfig:
    """The stored settings of a run, those that concern its rollouts."""
    tree = TrainConfig if kind == "train" else EvalConfig
    known = {name: settings[name] for name in chz.chz_fields(RolloutConfig) if name in settings}
    return tree(**known)


def new_run_name(run_root: Path, model_name: str) -> str:
    """A name by date and model that no run has yet."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(model_name).name}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 1000))]
    return next(name for name in names if not (run_root / name).exists())


def _check(config: RolloutConfig, service: Service | None = None) -> _Model:
    """Refuses what could not work, and opens the tokenizer."""
    service = service or (Service.ENGINE if config.base_url is None else Service.TINKER)
    logging.getLogger().setLevel(config.log_level.upper())
    require_key(service, config.model_name, config.base_url)
    # Where nothing is said in tokens any tokenizer will do.
    model_name = "termrl/tiny" if service in (Service.LITELLM, Service.NONE) else config.model_name
    source: Path | str = model_name
    if service is Service.ENGINE or model_name == "termrl/tiny":
        source = resolve_model(model_name, say=print)
    import_path_of(config.agent)
    RewardRule.parse(config.reward)
    load_reward_function(config.reward_fn)
    _warn_of_what_will_disappoint(config)
    tokenizer = load_tokenizer(source)
    choice = choose_renderer(
        tokenizer, model_name, name=config.renderer, keep_thinking=_keeps_thinking(config)
    )
    return _Model(tokenizer, choice)


def _in_training(config: RolloutConfig) -> bool:
    return isinstance(config, TrainConfig)


def _keeps_thinking(config: RolloutConfig) -> bool:
    return _in_training(config) if config.keep_thinking is None else config.keep_thinking


def _returns_early(config: RolloutConfig) -> bool:
    return _in_training(config) if config.early_return is None else config.early_return


def _warn_of_what_will_disappoint(config: RolloutConfig) -> None:
    if config.agent == "terminus-2" and config.max_tokens > TERMINUS_2_LIMIT:
        _log.warning(
            "max_tokens is %d, but Terminus-2 refuses answers over %d tokens whole: lower it.",
            *(config.max_tokens, TERMINUS_2_LIMIT),
        )
    if config.keep_thinking is False and _in_training(config):
        _log.warning(
            "keep_thinking is off: prompts no longer extend what was sampled wherever thoughts are dropped, "
            "so turns become segments of their own and training tokens grow with the square of the turns."
        )


def _record(run: Run, config: RolloutConfig, model: _Model) -> None:
    """What the settings came to, where they leave it to the kind of run or to the model."""
    run.record_fact("renderer", {"name": model.choice.name, "keeps_thinking": model.choice.keeps_thinking})
    run.record_fact("early_return", _returns_early(config))


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


def _open_run(config: RolloutConfig) -> Run:
    run_root = Path(config.run_root).expanduser()
    path = run_root / (config.run_name or new_run_name(run_root, config.model_name))
    kind = "train" if isinstance(config, TrainConfig) else "eval"
    if not (path / DATABASE).exists():
        return Run.create(path, kind=kind, settings=to_dict(chz.replace(config, run_name=path.name)))
    if config.behavior_if_run_exists == "new":
        path = path.with_name(free_name(path))
        return Run.create(path, kind=kind, settings=to_dict(chz.replace(config, run_name=path.name)))
    if config.behavior_if_run_exists != "resume":
        raise RunExistsError(
            f"The run {path} is there already: give another run_name, or go on with it "
            "(behavior_if_run_exists=resume)."
        )
    return Run.open(path, write=True)


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


@asynccontextmanager
async def _service(
    config: RolloutConfig, state: Path, log: Path, service: Service | None = None
) -> AsyncIterator[tinker.ServiceClient]:
    """The Tinker server that was named, or the embedded engine for as long as it is needed."""
    if config.base_url is not None or service is Service.TINKER:
        with tinker.ServiceClient(base_url=config.base_url) as client:
            yield client
        return
    async with start_engine(
        state, models=(config.model_name,), log_path=log, cache_dir=cache_directory() / "compiled"
    ) as engine:
        with tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as client:
            yield client


async def _with_snapshots(
    config: RolloutConfig, backend: Backend, tasks: Sequence[HarborTask], progress: Progress
) -> Backend:
    if not config.snapshots:
        return backend
    agent = tools_of(config.agent, backend.environment_type).key
    return await start_from_snapshots(backend, tasks, agent, progress.note)


async def _pool(
    config: RolloutConfig,
    service: tinker.ServiceClient,
    renderer: Renderer,
    run: Run,
    where: Mapping[str, Any],
) -> RolloutPool:
    limit = await _context_limit(config, service)
    run.record_fact("context_limit", limit)
    settings = _rollout_settings(config, limit, run.path / "trials", where)
    runner = RolloutRunner(settings, renderer)
    return RolloutPool(runner, concurrency=config.n_parallel_envs, prewarm=config.prewarm)


async def _context_limit(config: RolloutConfig, service: tinker.ServiceClient) -> int:
    """The context that was asked for, or all that the server gives the model."""
    served = await service.get_server_capabilities_async()
    limits = {model.model_name: model.max_context_length for model in served.supported_models}
    most = limits.get(config.model_name)
    if config.context_limit is not None:
        if most is not None and config.context_limit > most:
            raise UserError(
                f"context_limit is {config.context_limit}, but the server gives {config.model_name} {most} "
                "tokens: lower it, or leave it out."
            )
        return config.context_limit
    if most is None:
        raise UserError(
            f"The server does not say how long {config.model_name}'s context is: set context_limit."
        )
    return most


def _rollout_settings(
    config: RolloutConfig, limit: int, trials_dir: Path, where: Mapping[str, Any]
) -> RolloutSettings:
    return RolloutSettings(
        model_name=config.model_name,
        trials_dir=trials_dir,
        max_turns=config.max_turns,
        max_tokens=config.max_tokens,
        context_limit=limit,
        enable_summarize=config.enable_summarize,
        proactive_summarization_threshold=config.proactive_summarization_threshold,
        agent=config.agent,
        early_return=_returns_early(config),
        keep_thinking=_keeps_thinking(config),
        reward=config.reward,
        reward_fn=config.reward_fn,
        gateway_url=config.gateway_url,
        gateway_port=config.gateway_port,
        gateway_tunnel=config.gateway_tunnel,
        keep_trials=config.keep_trials,
        **(_evaluation_settings(config) if isinstance(config, EvalConfig) else {}),
        **where,
    )


def _evaluation_settings(config: EvalConfig) -> dict[str, Any]:
    kwargs = {name: _typed(value) for name, value in config.agent_kwargs.items()}
    return {"agent_kwargs": tuple(kwargs.items()), "timeout_multiplier": config.timeout_multiplier}


def _typed(value: float | str) -> Any:
    """A setting of the agent's as it was meant: whole numbers, true and false, texts."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return {"true": True, "false": False, "none": None}.get(value.lower(), value)


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
