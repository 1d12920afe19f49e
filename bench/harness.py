"""What the harness costs: rollouts of a scripted model against stock Harbor, at 1 and at 8 at once.

    scripts/docker-engine.sh run .venv/bin/python bench/harness.py [--json] [--check] [--parts PART,...]

The same task, the same 12 answers, in one run: stock is Harbor's `Trial` with its own Terminus-2 on its
Docker environment (or, where there is no engine, on our sandbox: then only the agent differs, and --check
says so). Parts: `quick` (durations of 0), `real` (the durations that models ask for, 1 to 15 s, of commands
that return in 0.1 s), `docker` (ours on Docker), `cpu` (50 turns of 30k tokens), `memory` (rollouts in
flight with 30k tokens each).
"""

import argparse
import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HARBOR_TELEMETRY", "off")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from harbor.llms.base import BaseLLM, LLMResponse
from harbor.models.environment_type import EnvironmentType
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from termrl.agents.stock import Terminus2
from termrl.engine.catalog import resolve_model
from termrl.policy.rendering import make_renderer
from termrl.policy.scripted import ScriptedSampler
from termrl.policy.tokenizer import load_tokenizer
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.settings import LOCAL_ENVIRONMENT, RolloutSettings

TURNS = 12
AT_ONCE = (1, 8)
REAL_DURATIONS = (1.0, 1.0, 2.0, 1.0, 3.0, 1.0, 5.0, 1.0, 2.0, 15.0, 1.0, 1.0)
WANTED_LOCAL = 20.0
WANTED_DOCKER = 2.0
WANTED_CPU_SECONDS = 2.0
WANTED_MEMORY_MB = 1.0
IMAGE = "termrl-bench/small:1"
SMALL_ROOT = Path(__file__).parents[1] / "scripts" / "small_root.py"
DOCKER = "termrl.sandbox.engines:LabelledDocker"
PARTS = ("quick", "real", "docker", "cpu", "memory")

TASK_TOML = """
schema_version = "1.1"
[task]
name = "bench/harness"
[agent]
timeout_sec = 600.0
[verifier]
timeout_sec = 120.0
[environment]
network_mode = "no-network"
"""
TEST_SH = """#!/bin/bash
if [ "$(cat /app/hello.txt 2>/dev/null)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@dataclass(frozen=True)
class Task:
    task_name: str
    task_dir: Path


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="termrl-bench-") as folder:
        bench = Bench(Path(folder), stock=options.stock)
        found = asyncio.run(bench.run(options.parts))
    missed = found["missed"]
    print(json.dumps(found, indent=1) if options.json else _table(found))
    if options.check and missed:
        print(missed[-1])
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures for machines")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a promised figure is missed")
    parser.add_argument("--stock", choices=("docker", "local"), default=None, help="where stock runs")
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts, separated by commas")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    options.stock = options.stock or ("docker" if _has_docker() else "local")
    return options


def _has_docker() -> bool:
    program = shutil.which("docker")
    if program is None:
        return False
    return subprocess.run([program, "info"], capture_output=True, check=False).returncode == 0


def _make_image(folder: Path) -> None:
    """An image of this host's own programs, imported on first use: no registry is asked."""
    known = subprocess.run(["docker", "images", "-q", IMAGE], capture_output=True, text=True, check=True)
    if known.stdout.strip():
        return
    root, packed = folder / "root", folder / "root.tar"
    subprocess.run([sys.executable, str(SMALL_ROOT), str(root), "tmux", "stty"], check=True)
    subprocess.run(["tar", "-C", str(root), "-cf", str(packed), "."], check=True)
    subprocess.run(["docker", "import", "--change", "WORKDIR /app", str(packed), IMAGE], check=True)


class Bench:
    def __init__(self, folder: Path, *, stock: str) -> None:
        if stock == "docker":
            _make_image(folder)
        self._folder = folder
        self._stock = stock
        self._tokenizer = load_tokenizer(resolve_model("termrl/tiny"))
        self._renderer = make_renderer(self._tokenizer, "termrl/tiny")

    async def run(self, parts: Sequence[str]) -> dict[str, Any]:
        figures: dict[str, Any] = {"stock_on": self._stock}
        missed: list[str] = []
        if {"quick", "real", "docker"} & set(parts):
            _say(f"warming up: one of stock's on {self._stock}, one of ours on local")
            await self._run_stock((0.0,) * TURNS)
            await self._run_ours((0.0,) * TURNS, "local")
        for part, durations in (("quick", (0.0,) * TURNS), ("real", REAL_DURATIONS)):
            if part in parts:
                figures[part] = await self._race(part, durations, missed)
        if "docker" in parts and self._stock == "docker":
            figures["docker"] = await self._race_on_docker(figures.get("quick", {}), missed)
        if "cpu" in parts:
            figures["cpu_seconds"] = await self._cpu()
            _require(
                missed,
                figures["cpu_seconds"] <= WANTED_CPU_SECONDS,
                "50 turns of 30k tokens took "
                f"{figures['cpu_seconds']:.2f} s of CPU in the harness, not {WANTED_CPU_SECONDS} s",
            )
        if "memory" in parts:
            figures["mb_per_rollout"] = await self._memory()
            _require(
                missed,
                figures["mb_per_rollout"] <= WANTED_MEMORY_MB,
                f"a rollout in flight holds {figures['mb_per_rollout']:.2f} MB, not {WANTED_MEMORY_MB} MB",
            )
        if self._stock != "docker":
            missed.append("stock ran on our sandbox, because there is no Docker engine: no figure against it")
        return {**figures, "missed": missed}

    async def _race(self, part: str, durations: Sequence[float], missed: list[str]) -> dict[str, Any]:
        rows = {}
        for count in AT_ONCE:
            _say(f"{part}, {count} at once: stock on {self._stock}")
            stock = await _timed(count, lambda: self._run_stock(durations))
            _say(f"{part}, {count} at once: ours on local")
            ours = await _timed(count, lambda: self._run_ours(durations, "local"), repeats=3)
            rows[str(count)] = {"stock_seconds": stock, "local_seconds": ours, "times": stock / ours}
            _require(
                missed,
                stock / ours >= WANTED_LOCAL,
                f"{part} at {count}: local is "
                f"{stock / ours:.1f} times stock on {self._stock}, not {WANTED_LOCAL:.0f}",
            )
        return rows

    async def _race_on_docker(self, quick: dict[str, Any], missed: list[str]) -> dict[str, Any]:
        """Ours on Docker against what stock took there: measured just now, if it was."""
        rows = {}
        durations = (0.0,) * TURNS
        await self._run_ours(durations, DOCKER)
        for count in AT_ONCE:
            stock = quick.get(str(count), {}).get("stock_seconds")
            if stock is None:
                _say(f"docker, {count} at once: stock")
                stock = await _timed(count, lambda: self._run_stock(durations))
            _say(f"docker, {count} at once: ours")
            ours = await _timed(count, lambda: self._run_ours(durations, DOCKER))
            rows[str(count)] = {"stock_seconds": stock, "ours_seconds": ours, "times": stock / ours}
            _require(
                missed,
                stock / ours >= WANTED_DOCKER,
                f"docker at {count}: ours takes {ours:.1f} s of stock's {stock:.1f} s, not half",
            )
        return rows

    async def _run_stock(self, durations: Sequence[float]) -> None:
        environment = (
            EnvironmentConfig(type=EnvironmentType.DOCKER)
            if self._stock == "docker"
            else EnvironmentConfig(import_path=LOCAL_ENVIRONMENT)
        )
        trial = await Trial.create(
            TrialConfig(
                task=TaskConfig(path=self._task(self._stock).task_dir),
                trials_dir=self._folder / "trials",
                agent=AgentConfig(
                    import_path=f"{__name__}:StockTerminus2",
                    model_name="some/model",
                    kwargs={"record_terminal_session": False, "enable_summarize": False},
                ),
                environment=environment,
            )
        )
        assert isinstance(trial.agent, Terminus2)
        trial.agent._llm = Scripted(_answers(durations))
        result = await trial.run()
        rewards = result.verifier_result.rewards if result.verifier_result else None
        if rewards != {"reward": 1.0}:
            raise RuntimeError(f"stock's rollout did not solve the task: {rewards} {result.exception_info}")

    async def _run_ours(self, durations: Sequence[float], environment: str) -> None:
        runner = self._runner(environment)
        sampler = ScriptedSampler(_answers(durations), self._tokenizer, self._renderer)
        rollout = await runner.run(self._task(environment), sampler, seed=0)
        if not rollout.solved:
            raise RuntimeError(f"our rollout did not solve the task: {rollout.outcome} {rollout.detail}")

    def _runner(self, environment: str = "local", **settings: Any) -> RolloutRunner:
        whole: dict[str, Any] = {
            "model_name": "termrl/tiny",
            "trials_dir": self._folder / "trials",
            "max_turns": 60,
            "max_tokens": 1000,
            "context_limit": 1_000_000,
            "environment": environment,
            "early_return": True,
            **settings,
        }
        return RolloutRunner(RolloutSettings(**whole), self._renderer)

    def _task(self, environment: str, instruction: str = "Write hello to /app/hello.txt\n") -> Task:
        environment = "docker" if environment == DOCKER else environment
        name = f"{environment}-{len(instruction)}"
        directory = self._folder / "tasks" / name
        base = IMAGE if environment == "docker" else "termrl/host"
        # Harbor gives a task without a network a side-car, whose image it would fetch.
        toml = TASK_TOML.replace("no-network", "public") if environment == "docker" else TASK_TOML
        files = {
            "task.toml": toml,
            "instruction.md": instruction,
            "environment/Dockerfile": f"FROM {base}\nWORKDIR /app\n",
            "tests/test.sh": TEST_SH,
        }
        for path, text in files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_text(text)
        return Task(name, directory)

    async def _long_rollout(self, turns: int) -> None:
        """A rollout whose every prompt has 30k tokens."""
        words = "word " * 6000
        task = self._task("local", words)
        while len(self._tokenizer.encode(words)) < 30_000:
            words += words
        task = self._task("local", words)
        sampler = ScriptedSampler(_answers((0.0,) * turns), self._tokenizer, self._renderer)
        await self._runner(max_turns=turns + 1).run(task, sampler, seed=0)

    async def _cpu(self) -> float:
        _say("cpu: 50 turns of 30k tokens")
        await self._run_ours((0.0,) * 3, "local")
        began = time.process_time()
        await self._long_rollout(50)
        return time.process_time() - began

    async def _memory(self, count: int = 8) -> float:
        _say(f"memory: {count} rollouts in flight with 30k tokens each")
        from termrl.policy.asking import Policy
        from termrl.policy.budget import ContextBudget

        await self._run_ours((0.0,) * 3, "local")
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        held = []
        for number in range(count):
            sampler = ScriptedSampler(
                ["an answer of some words"], self._tokenizer, self._renderer, repeat_last=True
            )
            policy = Policy(sampler, self._renderer, ContextBudget(1_000_000, 1000), number)
            messages: list[dict[str, Any]] = []
            while not policy.turns or policy.turns[-1].end < 30_000:
                screen = "".join(
                    f"line {len(messages)} of rollout {number}: some output\n" for _ in range(20)
                )
                messages.append({"role": "user", "content": screen})
                answer = await policy.ask(messages)
                messages.append(dict(answer.message))
            held.append((policy, messages))
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert len(held) == count
        return grown / count / 1e6


class Scripted(BaseLLM):
    def __init__(self, answers: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._answers = iter(answers)

    async def call(self, prompt: str, **kwargs: Any) -> LLMResponse:
        return LLMResponse(content=next(self._answers))

    def get_model_context_limit(self) -> int:
        return 1_000_000

    def get_model_output_limit(self) -> int | None:
        return None


class StockTerminus2(Terminus2):
    """Stock, but for a model that needs no key."""

    def _init_llm(self, *args: Any, **kwargs: Any) -> BaseLLM:
        return Scripted([])


def _answers(durations: Sequence[float]) -> list[str]:
    said = []
    for number, duration in enumerate(durations):
        last = number >= len(durations) - 2
        command = "sleep 0.1; echo step" if duration else "echo step"
        command = "echo hello > /app/hello.txt" if number == 0 else command
        typed = [] if last else [{"keystrokes": f"{command}\n", "duration": duration}]
        said.append(json.dumps({"analysis": "a", "plan": "p", "commands": typed, "task_complete": last}))
    return said


async def _timed(count: int, make: Callable[[], Awaitable[None]], repeats: int = 1) -> float:
    """Seconds for `count` rollouts at once, the best of `repeats`."""
    best = float("inf")
    for _ in range(repeats):
        began = time.monotonic()
        await asyncio.gather(*(make() for _ in range(count)))
        best = min(best, time.monotonic() - began)
    return best


def _require(missed: list[str], reached: bool, otherwise: str) -> None:
    if not reached:
        missed.append(otherwise)


def _say(text: str) -> None:
    print(f"[harness] {text}", file=sys.stderr, flush=True)


def _table(found: dict[str, Any]) -> str:
    lines = [f"stock runs on {found['stock_on']}"]
    for part in ("quick", "real", "docker"):
        for count, row in found.get(part, {}).items():
            ours = row.get("local_seconds", row.get("ours_seconds"))
            lines.append(
                f"{part:<8}{count:>2} at once   stock {row['stock_seconds']:7.2f} s   ours {ours:6.2f} s   "
                f"{row['times']:5.1f} times"
            )
    if "cpu_seconds" in found:
        lines.append(f"cpu     50 turns of 30k tokens: {found['cpu_seconds']:.2f} s in the harness")
    if "mb_per_rollout" in found:
        lines.append(f"memory  {found['mb_per_rollout']:.2f} MB for each rollout in flight with 30k tokens")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
