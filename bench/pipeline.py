"""How busy the pipeline keeps its places, and how much faster it is than the synchronous loop.

Rollouts of real model calls to the embedded engine, which wait where commands would run: log-normally with
sigma 1, four times as long as the model takes over them. Both loops do the same steps with the same number of
places. Perfect packing is a place for every rollout at every moment, or an engine that never rests, whichever
is the limit; what is measured is the share of it that is reached between the first step and the last draw.

    .venv/bin/python bench/pipeline.py [--steps 16] [--json] [--check]
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

os.environ.setdefault("TINKER_TELEMETRY", "0")

import tinker

from termrl.cache import cache_directory
from termrl.config import TrainConfig
from termrl.engine.catalog import resolve_model
from termrl.engine.process import EngineHandle, start_engine
from termrl.learn.meter import Meter
from termrl.learn.prices import Prices
from termrl.learn.progress import Silent
from termrl.learn.stop import Stop
from termrl.learn.train import train_run
from termrl.learn.training import Training
from termrl.policy.rendering import make_renderer
from termrl.policy.tokenizer import load_tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.waiting import WaitingRunner
from termrl.store import Run
from termrl.tasks import HarborTask

LEAST_BUSY = 0.90
LEAST_SPEEDUP = 2.0
WAITING = 4.0
SIGMA = 1.0
MODEL = "termrl/tiny"
GROUPS, MEMBERS, TURNS, TOKENS = 4, 4, 3, 48
PLACES = GROUPS * MEMBERS


class NamedTask:
    def __init__(self, name: str) -> None:
        self.task_name = name
        self.task_dir = Path(name)


class TimedRunner(WaitingRunner):
    """Waiting rollouts that note when each held its place."""

    def __init__(self, wait: Callable[[Random], float]) -> None:
        super().__init__(wait, turns=TURNS, max_tokens=TOKENS)
        self.held: list[tuple[float, float]] = []

    async def run(self, task: Any, sampler: Any, *, seed: int) -> Rollout:
        began = time.monotonic()
        try:
            return await super().run(task, sampler, seed=seed)
        finally:
            self.held.append((began, time.monotonic()))


async def no_evaluation(*_: object) -> None:
    pass


async def run_once(
    root: Path, name: str, engine: EngineHandle, steps: int, lag: int, wait: Callable[[Random], float]
) -> dict[str, Any]:
    """A training run; when each step was over, and when each rollout held its place."""
    config = TrainConfig(
        batch_size=GROUPS,
        group_size=MEMBERS,
        max_steps=steps,
        max_steps_off_policy=lag,
        n_parallel_envs=PLACES,
        learning_rate=1e-4,
        lora_rank=8,
        eval_base=False,
        save_every=0,
    )
    tokenizer = load_tokenizer(resolve_model(MODEL))
    runner = TimedRunner(wait)
    pool = RolloutPool(cast(RolloutRunner, runner), concurrency=PLACES)
    stop, ends = Stop(), list[float]()
    with (
        Run.create(root / name, kind="train", settings={"batch_size": GROUPS}) as run,
        tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as service,
    ):
        training = Training(
            run=run,
            config=config,
            service=service,
            pool=pool,
            tasks=[cast(HarborTask, NamedTask(f"task-{index}")) for index in range(64)],
            tokenizer=tokenizer,
            renderer=make_renderer(tokenizer, MODEL),
            steps=steps,
            meter=Meter(run, config, Prices(0.0, 0.0, 0.0, 0.0), pool, stop),
            stop=stop,
            progress=Silent(),
            evaluate=no_evaluation,
            log=lambda step, metrics: ends.append(time.monotonic()),
        )
        await train_run(training)
        metrics = list(run.steps().values())
    # The steps after the last draw have ever fewer rollouts to wait for: they are not the steady state.
    first, last = ends[0], ends[-1 - lag]
    held = sum(max(0.0, min(end, last) - max(begin, first)) for begin, end in runner.held)
    return {
        "seconds_per_step": (last - first) / (len(ends) - 1 - lag),
        "busy": held / (PLACES * (last - first)),
        "seconds_per_rollout": sum(end - begin for begin, end in runner.held) / len(runner.held),
        "staleness_max": max(each["staleness_max"] for each in metrics),
        "waited": sum(each["seconds_sampling"] for each in metrics[1:]) / (ends[-1] - ends[0]),
    }


async def measure(steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="termrl-bench-") as directory:
        root = Path(directory)
        async with start_engine(
            root / "engine",
            models=(MODEL,),
            log_path=root / "engine.log",
            cache_dir=cache_directory() / "compiled",
        ) as engine:
            await run_once(root, "warm", engine, 5, 2, lambda random: 0.0)
            compute = await run_once(root, "compute", engine, 6, 2, lambda random: 0.0)
            mean = WAITING * compute["seconds_per_rollout"]
            scale = mean / 2.718281828 ** (SIGMA**2 / 2)

            def wait(random: Random) -> float:
                return scale * random.lognormvariate(0.0, SIGMA)

            synchronous = await run_once(root, "synchronous", engine, max(steps // 2, 5), 0, wait)
            pipeline = await run_once(root, "pipeline", engine, steps, 2, wait)
    engine_busy = compute["seconds_per_step"] / pipeline["seconds_per_step"]
    return {
        "compute": compute,
        "synchronous": synchronous,
        "pipeline": pipeline,
        "busy": max(pipeline["busy"], engine_busy),
        "engine_busy": engine_busy,
        "steps_per_hour": 3600 / pipeline["seconds_per_step"],
        "speedup": synchronous["seconds_per_step"] / pipeline["seconds_per_step"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=16, help="steps of the pipeline")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 where a promised figure is missed")
    arguments = parser.parse_args()
    report = asyncio.run(measure(arguments.steps))
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        print(
            f"max_steps_off_policy=2: {report['busy']:.0%} of perfect packing, "
            f"{report['steps_per_hour']:.0f} steps an hour, {report['speedup']:.1f} times the synchronous "
            f"loop (which held its places {report['synchronous']['busy']:.0%} of the time)"
        )
    missed = []
    if report["busy"] < LEAST_BUSY:
        missed.append(f"{report['busy']:.0%} of perfect packing, not at least {LEAST_BUSY:.0%}")
    if report["speedup"] < LEAST_SPEEDUP:
        missed.append(f"{report['speedup']:.2f} times the synchronous loop, not at least {LEAST_SPEEDUP:g}")
    if arguments.check and missed:
        print("; ".join(missed))
        sys.exit(1)


if __name__ == "__main__":
    main()
