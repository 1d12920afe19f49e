"""Small tasks, and evaluations of them by a policy that reads its answers from a script."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from termrl.config import EvalConfig
from termrl.engine.catalog import resolve_model
from termrl.evaluate.evaluation import plan_evaluation, run_evaluation
from termrl.evaluate.results import EvalResult
from termrl.learn.progress import Progress, Silent
from termrl.policy.rendering import make_renderer
from termrl.policy.sampler import Sampler
from termrl.policy.scripted import ScriptedSampler
from termrl.policy.tokenizer import load_tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.settings import RolloutSettings
from termrl.settings import to_dict
from termrl.store import Run

TASK_TOML = """
schema_version = "1.1"
[task]
name = "test/{name}"
[metadata]
category = "{category}"
difficulty = "{difficulty}"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
network_mode = "no-network"
"""
TEST_SH = """#!/bin/bash
if [ "$(cat /app/hello.txt 2>/dev/null)" = {word} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def write_task(directory: Path, name: str, *, word: str = "hello", category: str = "a") -> Path:
    """A task that is solved when hello.txt says the word; a script that says hello solves half of them."""
    files = {
        "task.toml": TASK_TOML.format(name=name, category=category, difficulty="easy"),
        "instruction.md": f"Write {word} to /app/hello.txt\n",
        "environment/Dockerfile": "FROM termrl/host\nWORKDIR /app\n",
        "tests/test.sh": TEST_SH.format(word=word),
        "solution/solve.sh": f"#!/bin/bash\necho {word} > /app/hello.txt\n",
    }
    for file, text in files.items():
        path = directory / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory / name


def answer(*commands: str, done: bool = False) -> str:
    """What a model that speaks the agent's format would say to type these commands."""
    typed = [{"keystrokes": f"{command}\n", "duration": 0.1} for command in commands]
    return json.dumps({"analysis": "a", "plan": "p", "commands": typed, "task_complete": done})


SAY_HELLO = [answer("echo hello > /app/hello.txt", done=True), answer(done=True)]


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Four tasks, of which saying hello solves the first two."""
    for number in range(4):
        word = "hello" if number < 2 else "goodbye"
        write_task(tmp_path / "tasks", f"task-{number}", word=word, category=word)
    return tmp_path / "tasks"


type Evaluation = Callable[..., Any]


class Scripted:
    """Evaluations by a script, the whole way but for the model."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tokenizer = load_tokenizer(resolve_model("termrl/tiny"))
        self.renderer = make_renderer(self.tokenizer, "termrl/tiny")

    def config(self, **settings: Any) -> EvalConfig:
        whole: dict[str, Any] = {
            "dataset": str(self.directory / "tasks"),
            "run_root": str(self.directory / "runs"),
            "max_tokens": 1000,
            **settings,
        }
        return EvalConfig(**whole)

    def sampler(self, answers: Sequence[str] = SAY_HELLO) -> ScriptedSampler:
        return ScriptedSampler(answers, self.tokenizer, self.renderer)

    async def evaluate(
        self,
        config: EvalConfig,
        *,
        sampler: Sampler | None = None,
        progress: Progress | None = None,
        **settings: Any,
    ) -> EvalResult:
        plan = plan_evaluation(config)
        plan.files.prepare()
        opened = (
            Run.open(plan.run_path, write=True)
            if plan.goes_on
            else Run.create(plan.run_path, kind="eval", settings=to_dict(plan.config))
        )
        with opened as run:
            rollouts = RolloutSettings(
                model_name="termrl/tiny",
                trials_dir=run.path / "trials",
                max_turns=config.max_turns,
                max_tokens=config.max_tokens,
                context_limit=20_000,
                keep_trials=config.keep_trials,
                **settings,
            )
            runner = RolloutRunner(rollouts, self.renderer)
            pool = RolloutPool(runner, concurrency=config.n_parallel_envs, backoff_seconds=0.01)
            return await run_evaluation(
                plan,
                run,
                pool,
                sampler or self.sampler(),
                tokenizer=self.tokenizer,
                service="scripted",
                progress=progress or Silent(),
            )


@pytest.fixture
def scripted(tmp_path: Path, tasks: Path) -> Scripted:
    return Scripted(tmp_path)
