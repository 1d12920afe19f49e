"""`termrl/terminal-mini` in Docker: every oracle passes there too. Part of `make test-all`."""

import asyncio
from pathlib import Path

import pytest

from termrl.evaluate.gate_attempt import AttemptSettings, attempt
from termrl.evaluate.gate_subjects import ORACLE
from termrl.sandbox.backends import Backend
from termrl.tasks import HarborTask, load_harbor_tasks

pytestmark = pytest.mark.docker


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("host_image")
async def test_every_oracle_passes_in_docker(tmp_path: Path) -> None:
    settings = AttemptSettings(Backend("docker"), tmp_path / "trials")
    places = asyncio.Semaphore(4)

    async def outcome(task: HarborTask) -> str:
        async with places:
            rollout = await attempt(task, "", ORACLE, settings)
        return "solved" if rollout.solved else f"{rollout.outcome}: {rollout.detail}"

    tasks = load_harbor_tasks("terminal-mini")
    found = await asyncio.gather(*map(outcome, tasks))
    unsolved = {task.task_name: got for task, got in zip(tasks, found, strict=True) if got != "solved"}
    assert unsolved == {}
