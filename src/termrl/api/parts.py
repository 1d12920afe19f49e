"""What training, evaluation and replay share: the model, the run, the server, what rollouts are told.

Everything that can be wrong with the input is found out here before a run is made.
"""

import logging
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
from termrl.engine.catalog import resolve_model, tokenizer_source
from termrl.engine.process import PreparedEngine, start_engine
from termrl.errors import UserError
from termrl.learn.progress import Progress
from termrl.learn.resume import RunExistsError, free_name
from termrl.policy.rendering import Renderer, RendererChoice, choose_renderer
from termrl.policy.service import Service, require_key
from termrl.policy.tokenizer import Tokenizer, load_tokenizer
from termrl.rollout.reward import RewardRule, load_reward_function
from termrl.rollout.settings import RolloutSettings
from termrl.sandbox.backends import Backend
from termrl.sandbox.choice import start_from_snapshots
from termrl.settings import to_dict
from termrl.store import Run
from termrl.store.run import DATABASE
from termrl.tasks import HarborTask

_log = logging.getLogger(__name__)

TERMINUS_2_LIMIT = 16_384
"""Tokens in an answer beyond which Terminus-2 throws all of it away."""


@dataclass(frozen=True)
class Model:
    """What turns messages into a model's tokens and back."""

    tokenizer: Tokenizer
    choice: RendererChoice

    @property
    def renderer(self) -> Renderer:
        return self.choice.renderer


def checked_model(config: RolloutConfig, service: Service | None = None) -> Model:
    """Refuses what could not work, and opens the tokenizer."""
    service = service or (Service.ENGINE if config.base_url is None else Service.TINKER)
    logging.getLogger().setLevel(config.log_level.upper())
    require_key(service, config.model_name, config.base_url)
    # Where nothing is said in tokens any tokenizer will do.
    model_name = "termrl/tiny" if service in (Service.LITELLM, Service.NONE) else config.model_name
    engine = service is Service.ENGINE
    source = resolve_model(model_name, say=print) if engine else tokenizer_source(model_name)
    import_path_of(config.agent)
    RewardRule.parse(config.reward)
    load_reward_function(config.reward_fn)
    _warn_of_what_will_disappoint(config)
    tokenizer = load_tokenizer(source)
    choice = choose_renderer(
        tokenizer, model_name, name=config.renderer, keep_thinking=_keeps_thinking(config)
    )
    return Model(tokenizer, choice)


def _keeps_thinking(config: RolloutConfig) -> bool:
    return _in_training(config) if config.keep_thinking is None else config.keep_thinking


def _returns_early(config: RolloutConfig) -> bool:
    return _in_training(config) if config.early_return is None else config.early_return


def _in_training(config: RolloutConfig) -> bool:
    return isinstance(config, TrainConfig)


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


def record_choices(run: Run, config: RolloutConfig, model: Model) -> None:
    """What the settings came to, where they leave it to the kind of run or to the model."""
    run.record_fact("renderer", {"name": model.choice.name, "keeps_thinking": model.choice.keeps_thinking})
    run.record_fact("early_return", _returns_early(config))


def new_run_name(run_root: Path, model_name: str) -> str:
    """A name by date and model that no run has yet."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(model_name).name}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 1000))]
    return next(name for name in names if not (run_root / name).exists())


def open_run(config: RolloutConfig) -> Run:
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


@asynccontextmanager
async def service_for(
    config: RolloutConfig,
    state: Path,
    log: Path,
    service: Service | None = None,
    prepared: PreparedEngine | None = None,
) -> AsyncIterator[tinker.ServiceClient]:
    """The Tinker server that was named, or the embedded engine for as long as it is needed."""
    if config.base_url is not None or service is Service.TINKER:
        with tinker.ServiceClient(base_url=config.base_url) as client:
            yield client
        return
    starting = start_engine(
        state,
        models=(config.model_name,),
        log_path=log,
        cache_dir=cache_directory() / "compiled",
        prepared=prepared,
    )
    async with starting as engine:
        with tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as client:
            yield client


async def with_snapshots(
    config: RolloutConfig, backend: Backend, tasks: Sequence[HarborTask], progress: Progress
) -> Backend:
    if not config.snapshots:
        return backend
    agent = tools_of(config.agent, backend.environment_type).key
    return await start_from_snapshots(backend, tasks, agent, progress.note)


async def context_limit(config: RolloutConfig, service: tinker.ServiceClient) -> int:
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


def rollout_settings(
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
