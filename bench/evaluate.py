"""CPU that the orchestrating process spends on a turn, with 128 rollouts in flight.

The model takes two seconds a turn and the sandbox answers at once, both within this process, so that all
the CPU there is is the harness's own: agent, transcript, trial, store, files. The same turns through stock
Harbor (`Trial` with its Terminus-2) are measured in the same run.

    python bench/evaluate.py [--rollouts 128] [--turns 12] [--json] [--check]
"""

import argparse
import asyncio
import hashlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.llms.base import BaseLLM, LLMResponse
from harbor.models.environment_type import EnvironmentType
from harbor.models.metric import UsageInfo
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from termrl.config import EvalConfig
from termrl.engine.catalog import resolve_model
from termrl.evaluate.evaluation import plan_evaluation, run_evaluation
from termrl.learn.progress import Silent
from termrl.policy.rendering import make_renderer
from termrl.policy.sampler import SampledAnswer
from termrl.policy.scripted import ScriptedSampler
from termrl.policy.tokenizer import load_tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.settings import RolloutSettings
from termrl.settings import to_dict
from termrl.store import Run

PROMISED_MS = 5.0
MODEL_SECONDS = 2.0
STOCK_ROLLOUTS = 16
ANSWER = json.dumps(
    {
        "analysis": "The listing shows the files of the project; the next look is at the largest of them.",
        "plan": "List the directory again with sizes and read the head of the file.",
        "commands": [{"keystrokes": "ls -la /app | head -40\n", "duration": 0.0}],
        "task_complete": False,
    }
)
SCREEN = "\n".join(
    f"-rw-r--r-- 1 root root {1000 + 37 * line} Jan  1 00:00 file-{line}.txt" for line in range(38)
)


class InstantEnvironment(BaseEnvironment):
    """A sandbox that answers at once: every look at its terminal shows a full screen, every test passes.

    Nothing in it was tampered with, so it has the tests that were uploaded and keeps what is written.
    """

    _tests: Path | None = None

    @staticmethod
    def type() -> EnvironmentType:
        return EnvironmentType.DOCKER

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        pass

    async def stop(self, delete: bool) -> None:
        pass

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        pass

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        if target_dir == "/tests":
            self._tests = Path(source_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).write_text("1\n")

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        if "verifier" in source_dir:
            (Path(target_dir) / "reward.txt").write_text("1\n")

    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        if "sha256sum" in command and self._tests is not None:
            return ExecResult(stdout=self._untouched(self._tests), stderr="", return_code=0)
        if "capture-pane" not in command:
            return ExecResult(stdout="", stderr="", return_code=0)
        border = re.search(r"[0-9a-f]{32}", command)
        looks = f"{SCREEN}\n{border[0]} 1 2 /dev/pts/0\n{SCREEN}\n" if border else f"{SCREEN}\n"
        return ExecResult(stdout=looks, stderr="", return_code=0)

    def _untouched(self, tests: Path) -> str:
        """What `sha256sum` says of the tests, and the bait that nobody took."""
        files = sorted(path for path in tests.rglob("*") if path.is_file())
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
        lines = [
            f"{digest}  /tests/{path.relative_to(tests)}" for digest, path in zip(digests, files, strict=True)
        ]
        return "\n".join([*lines, "bait"])


class SlowSampler:
    """The script's answers, each after two seconds."""

    policy_version = 0

    def __init__(self, sampler: ScriptedSampler) -> None:
        self._sampler = sampler

    def for_attempt(self) -> "SlowSampler":
        return SlowSampler(self._sampler.for_attempt())

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        await asyncio.sleep(MODEL_SECONDS)
        return await self._sampler.sample(prompt, max_tokens, seed)


class SlowModel(BaseLLM):
    """The same answers as stock Harbor asks for them."""

    async def call(self, prompt: str, **kwargs: Any) -> LLMResponse:
        await asyncio.sleep(MODEL_SECONDS)
        usage = UsageInfo(prompt_tokens=1, completion_tokens=1, cache_tokens=0, cost_usd=0.0)
        return LLMResponse(content=ANSWER, usage=usage)

    def get_model_context_limit(self) -> int:
        return 1_000_000

    def get_model_output_limit(self) -> int | None:
        return None


def write_tasks(directory: Path, count: int) -> Path:
    for number in range(count):
        files = {
            "task.toml": "[agent]\ntimeout_sec = 3600\n[verifier]\ntimeout_sec = 3600\n",
            "instruction.md": "Look around.\n",
            "environment/Dockerfile": "FROM termrl/host\n",
            "tests/test.sh": "#!/bin/bash\ntrue\n",
        }
        for name, text in files.items():
            path = directory / f"task-{number:03d}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return directory


async def ours(directory: Path, tasks: Path, rollouts: int, turns: int) -> tuple[float, float, int]:
    """CPU seconds, seconds and turns of an evaluation with all rollouts in flight at once."""
    tokenizer = load_tokenizer(resolve_model("termrl/tiny"))
    renderer = make_renderer(tokenizer, "termrl/tiny")
    config = EvalConfig(
        dataset=str(tasks),
        run_root=str(directory / "runs"),
        n_parallel_envs=rollouts,
        max_turns=turns,
        max_tokens=1000,
        n_tasks=rollouts,
    )
    plan = plan_evaluation(config)
    plan.files.prepare()
    settings = RolloutSettings(
        model_name="termrl/tiny",
        trials_dir=plan.run_path / "trials",
        max_turns=turns,
        max_tokens=1000,
        context_limit=1_000_000,
        environment="__main__:InstantEnvironment",
        keep_trials="all",
    )
    sampler = SlowSampler(ScriptedSampler([ANSWER], tokenizer, renderer, repeat_last=True))
    with Run.create(plan.run_path, kind="eval", settings=to_dict(plan.config)) as run:
        pool = RolloutPool(RolloutRunner(settings, renderer), concurrency=rollouts)
        began, cpu = time.monotonic(), time.process_time()
        result = await run_evaluation(
            plan, run, pool, sampler, tokenizer=tokenizer, service="scripted", progress=Silent()
        )
        spent, took = time.process_time() - cpu, time.monotonic() - began
    if result.excluded:
        raise SystemExit(f"{result.excluded} rollouts were excluded: {result.rollouts[0].detail}")
    trials = len(list((plan.run_path / "trials").iterdir()))
    if trials != rollouts:
        raise SystemExit(
            f"{trials} trials were run for {rollouts} rollouts: the sandbox looks tampered with."
        )
    return spent, took, result.results["usage"]["turns"]["total"]


async def stock(directory: Path, tasks: Path, rollouts: int, turns: int) -> tuple[float, int]:
    """CPU seconds and turns of stock Harbor's trials, all at once."""

    async def one(task: Path) -> int:
        config = TrialConfig(
            task=TaskConfig(path=task),
            trials_dir=directory / "stock",
            agent=AgentConfig(
                name="terminus-2",
                model_name="openai/none",
                kwargs={"max_turns": turns, "record_terminal_session": False},
            ),
            environment=EnvironmentConfig(import_path="__main__:InstantEnvironment"),
        )
        trial = await Trial.create(config)
        agent: Any = trial.agent
        agent._llm = SlowModel()
        await trial.run()
        return int(agent._n_episodes)

    first, *rest = sorted(tasks.iterdir())[: rollouts + 1]
    await one(first)  # Imports and first uses are nobody's turn.
    cpu = time.process_time()
    counts = await asyncio.gather(*(one(task) for task in rest))
    return time.process_time() - cpu, sum(counts)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=128)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    parser.add_argument("--check", action="store_true", help="exit 1 where the promise is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="termrl-bench-") as place:
        directory = Path(place)
        tasks = write_tasks(directory / "tasks", max(options.rollouts, STOCK_ROLLOUTS + 1))
        asyncio.run(ours(directory / "warm", tasks, 2, 2))
        spent, took, turns = asyncio.run(ours(directory, tasks, options.rollouts, options.turns))
        stock_spent, stock_turns = asyncio.run(stock(directory, tasks, STOCK_ROLLOUTS, options.turns))
    figures = {
        "rollouts_in_flight": options.rollouts,
        "turns": turns,
        "seconds": took,
        "cpu_ms_a_turn": 1000 * spent / turns,
        "stock_rollouts_in_flight": STOCK_ROLLOUTS,
        "stock_cpu_ms_a_turn": 1000 * stock_spent / max(stock_turns, 1),
        "promised_ms": PROMISED_MS,
    }
    figures["ratio_to_stock"] = figures["cpu_ms_a_turn"] / figures["stock_cpu_ms_a_turn"]
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        print(
            f"{figures['cpu_ms_a_turn']:.2f} ms of CPU a turn, {options.rollouts} rollouts in flight, "
            f"{turns} turns in {took:.0f} s; stock Harbor: {figures['stock_cpu_ms_a_turn']:.2f} ms with "
            f"{STOCK_ROLLOUTS} in flight; ratio {figures['ratio_to_stock']:.2f}"
        )
    missed = figures["cpu_ms_a_turn"] > PROMISED_MS
    if options.check and missed:
        print(f"missed: {figures['cpu_ms_a_turn']:.2f} ms of CPU a turn, promised under {PROMISED_MS} ms")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
