"""The built-in tasks in the real local sandbox: the oracle passes, a no-op fails, and so do near misses."""

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from harbor.models.agent.name import AgentName
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial

from termrl.tasks import HarborTask, load_harbor_tasks, reference_commands

AT_ONCE = 8

# What a careless agent may type instead; {1} is the second word of the reference command.
NEAR_MISSES = {
    "make-directory": ["touch {1}"],
    "make-file": ["mkdir {1}", "echo > {1}"],
    "write-word": ["touch {3}", "printf {1} > {3}", "echo {3} > {1}"],
    "append-word": ["echo {1} > {3}", "printf {1} >> {3}", "echo {1}"],
    "link-file": ["ln {2} {3}", "cp {2} {3}", "ln -s {3} {2}"],
    "copy-file": ["mv {1} {2}", "ln {1} {2}", "ln -s {1} {2}", "touch {2}"],
    "rename-file": ["cp {1} {2}", "ln -s {1} {2}", "rm {1}"],
    "delete-file": ["rm *", "echo > {1}"],
    "make-executable": ["chmod -x {2}", "echo > {2}; chmod +x {2}"],
    "pack-directory": ["touch {2}", "cp -r {3} {2}", "tar -cf {2} -C {3} .", "tar -cf {2} {3}; rm -r {3}"],
    "count-lines": ["wc -l {3} > {5}", "wc -c < {3} > {5}"],
    "sort-lines": ["cp {1} {3}", "sort -r {1} > {3}", "tac {1} > {3}", "sort {1} -o {1}"],
    "first-line": ["tail -n 1 {3} > {5}", "head -n 2 {3} > {5}", "head -n 1 {3}"],
    "find-lines": ["grep -v {1} {2} > {4}", "cp {2} {4}", "grep {1} {2}"],
    "replace-word": ["sed {2} {3}", "sed -i d {3}"],
    "last-line": ["head -n 1 {3} > {5}", "tail -n 2 {3} > {5}"],
    "reverse-lines": ["cp {1} {3}", "sort {1} > {3}", "sort -r {1} > {3}", "rev {1} > {3}"],
    "unique-lines": ["sort {2} > {4}", "uniq {2} > {4}"],
}


async def reward(task_dir: Path, agent: AgentName, trials_dir: Path) -> float | str:
    """What Harbor's verifier says at the end of one trial, or what kept it from saying anything."""
    trial = await Trial.create(
        TrialConfig(
            task=TaskConfig(path=task_dir),
            trials_dir=trials_dir,
            agent=AgentConfig(name=agent.value),
            environment=EnvironmentConfig(import_path="termrl.sandbox.local:LocalEnvironment"),
        )
    )
    result = await trial.run()
    if result.exception_info is not None:
        return f"{result.exception_info.exception_type}: {result.exception_info.exception_message}"
    assert result.verifier_result is not None
    assert result.verifier_result.rewards is not None
    return float(result.verifier_result.rewards["reward"])


async def rewards(task_dirs: Iterable[Path], agent: AgentName, trials_dir: Path) -> dict[str, float | str]:
    places = asyncio.Semaphore(AT_ONCE)

    async def in_turn(task_dir: Path) -> tuple[str, float | str]:
        async with places:
            return task_dir.name, await reward(task_dir, agent, trials_dir)

    return dict(await asyncio.gather(*map(in_turn, task_dirs)))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("agent", "expected"), [(AgentName.ORACLE, 1.0), (AgentName.NOP, 0.0)])
async def test_the_oracle_passes_and_a_no_op_fails_on_every_task(
    agent: AgentName, expected: float, tmp_path: Path
) -> None:
    task_dirs = [task.task_dir for task in load_harbor_tasks("termrl/basics")]
    found = await rewards(task_dirs, agent, tmp_path)
    assert len(found) == len(task_dirs)
    assert {name: got for name, got in found.items() if got != expected} == {}


async def test_a_near_miss_fails_in_every_family(tmp_path: Path) -> None:
    first: dict[str, HarborTask] = {}
    for task in load_harbor_tasks("termrl/basics"):
        first.setdefault(task.config.metadata["family"], task)
    assert first.keys() == NEAR_MISSES.keys()
    commands: dict[str, str] = {}
    for family, task in first.items():
        for number, near_miss in enumerate(NEAR_MISSES[family]):
            copy = tmp_path / "tasks" / f"{family}-{number}"
            shutil.copytree(task.task_dir, copy)
            commands[copy.name] = near_miss.format(*reference_commands(task)[0].split())
            (copy / "solution" / "solve.sh").write_text(f"#!/bin/bash\n{commands[copy.name]}\n")
    found = await rewards((tmp_path / "tasks").iterdir(), AgentName.ORACLE, tmp_path / "trials")
    assert {commands[name]: got for name, got in found.items() if got != 0.0} == {}
