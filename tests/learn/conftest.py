"""An engine that the tests of this room share, and training runs of waiting rollouts on it."""

import os

os.environ.setdefault("TINKER_TELEMETRY", "0")

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import tinker
from anyio.from_thread import start_blocking_portal

from termrl.cache import cache_directory
from termrl.config import TrainConfig
from termrl.engine.catalog import resolve_model
from termrl.engine.process import EngineHandle, start_engine
from termrl.learn.meter import Meter
from termrl.learn.order import planned_steps
from termrl.learn.prices import Prices
from termrl.learn.progress import Progress, Silent
from termrl.learn.stop import Stop
from termrl.learn.training import Evaluate, Training
from termrl.policy.rendering import make_renderer
from termrl.policy.sampler import Sampler
from termrl.policy.tokenizer import load_tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.waiting import WaitingRunner
from termrl.settings import to_dict
from termrl.store import Run
from termrl.tasks import HarborTask

MODEL = "termrl/tiny"


class NamedTask:
    def __init__(self, name: str) -> None:
        self.task_name = name
        self.task_dir = Path(name)


TASKS = [cast(HarborTask, NamedTask(f"task-{index}")) for index in range(7)]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHandle]:
    directory = tmp_path_factory.mktemp("engine")
    with start_blocking_portal() as portal:
        starting = start_engine(
            directory,
            models=(MODEL,),
            log_path=directory / "engine.log",
            cache_dir=cache_directory() / "compiled",
        )
        with portal.wrap_async_context_manager(starting) as handle:
            yield handle


async def no_evaluation(name: str, step: int, sampler: Sampler, progress: Progress) -> None:
    pass


TrainingOf = Callable[..., Any]


@pytest.fixture
def training_of(engine: EngineHandle, tmp_path: Path) -> TrainingOf:
    """Opens a run's training: `async with training_of(name, config, ...) as training`."""
    tokenizer = load_tokenizer(resolve_model(MODEL))
    renderer = make_renderer(tokenizer, MODEL)

    @asynccontextmanager
    async def open_training(
        name: str,
        config: TrainConfig,
        *,
        wait: Callable[[Random], float] = lambda random: 0.0,
        runner: Any = None,
        evaluate: Evaluate = no_evaluation,
        prices: Prices | None = None,
        stop: Stop | None = None,
        progress: Progress | None = None,
    ) -> AsyncIterator[Training]:
        path = tmp_path / name
        exists = (path / "run.sqlite").exists()
        stop = stop or Stop()
        pool = RolloutPool(
            cast(RolloutRunner, runner or WaitingRunner(wait)),
            concurrency=config.n_parallel_envs,
            retries=0,
            backoff_seconds=0.0,
        )
        opened = (
            Run.open(path, write=True) if exists else Run.create(path, kind="train", settings=to_dict(config))
        )
        with opened as run, tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as service:
            yield Training(
                run=run,
                config=config,
                service=service,
                pool=pool,
                tasks=TASKS,
                tokenizer=tokenizer,
                renderer=renderer,
                steps=planned_steps(config, len(TASKS)),
                meter=Meter(run, config, prices or Prices(0.0, 0.0, 0.0, 0.0), pool, stop),
                stop=stop,
                progress=progress or Silent(),
                evaluate=evaluate,
                log=lambda step, metrics: None,
            )

    return open_training
