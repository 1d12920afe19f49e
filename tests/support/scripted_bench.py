"""Scripted policies at a small task, in real sandboxes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.sampler import Sampler
from termrl.policy.scripted import ScriptedSampler
from termrl.policy.tokenizer import FileTokenizer
from termrl.rollout.record import Rollout
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.settings import RolloutSettings

TASK_TOML = """
schema_version = "1.1"
[task]
name = "test/hello"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
[environment]
network_mode = "no-network"
"""
TEST_SH = """#!/bin/bash
if [ "$(cat /app/hello.txt 2>/dev/null)" = hello ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@dataclass(frozen=True)
class SmallTask:
    task_name: str
    task_dir: Path


def write_files(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def answer(*commands: str, done: bool = False, duration: float = 0.1) -> str:
    """What a model that speaks the agent's format would say to type these commands."""
    typed = [{"keystrokes": f"{command}\n", "duration": duration} for command in commands]
    return json.dumps({"analysis": "a", "plan": "p", "commands": typed, "task_complete": done})


SAY_HELLO = [answer("echo hello > /app/hello.txt", done=True), answer(done=True)]


class Bench:
    """Runs scripted policies at a small task in real sandboxes."""

    def __init__(self, directory: Path, tokenizer: FileTokenizer) -> None:
        self.directory = directory
        self.tokenizer = tokenizer
        self.renderer = ChatMLRenderer(tokenizer)
        self.task = self.write_task("hello")

    def write_task(self, name: str, files: dict[str, str] | None = None) -> SmallTask:
        directory = self.directory / "tasks" / name
        whole = {
            "task.toml": TASK_TOML,
            "instruction.md": "Write hello to /app/hello.txt\n",
            "environment/Dockerfile": "FROM termrl/host\nWORKDIR /app\n",
            "tests/test.sh": TEST_SH,
            **(files or {}),
        }
        write_files(directory, whole)
        return SmallTask(f"test/{name}", directory)

    def script(self, answers: Sequence[str], *, repeat_last: bool = False) -> ScriptedSampler:
        return ScriptedSampler(answers, self.tokenizer, self.renderer, repeat_last=repeat_last)

    def runner(self, **settings: Any) -> RolloutRunner:
        whole: dict[str, Any] = {
            "model_name": "termrl/tiny",
            "trials_dir": self.directory / "trials",
            "max_turns": 5,
            "max_tokens": 1000,
            "context_limit": 20_000,
            **settings,
        }
        return RolloutRunner(RolloutSettings(**whole), self.renderer)

    async def run(
        self,
        sampler: Sampler | Sequence[str],
        task: SmallTask | None = None,
        *,
        seed: int = 0,
        **settings: Any,
    ) -> Rollout:
        scripted = self.script(sampler) if isinstance(sampler, Sequence) else sampler
        return await self.runner(**settings).run(task or self.task, scripted, seed=seed)

    def trial_dirs(self) -> list[Path]:
        trials = self.directory / "trials"
        return sorted(trials.iterdir()) if trials.is_dir() else []
