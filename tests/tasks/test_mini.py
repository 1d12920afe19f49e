"""`termrl/terminal-mini`: what is in it and, in real sandboxes, that its oracles pass and idling does not."""

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest

from termrl.evaluate.gate_attempt import AttemptSettings, attempt
from termrl.evaluate.gate_subjects import NO_OP, ORACLE, Subject
from termrl.sandbox.backends import Backend
from termrl.tasks import HarborTask, load_harbor_tasks, validate_task_dir
from termrl.tasks.builtin import builtin_directory


def test_there_are_20_tasks_of_8_categories() -> None:
    tasks = load_harbor_tasks("terminal-mini")
    assert len(tasks) == 20
    assert Counter(str(task.config.metadata["category"]) for task in tasks).keys() == {
        "archives",
        "builds",
        "git",
        "logs",
        "permissions",
        "processes",
        "services",
        "text",
    }
    for task in tasks:
        validate_task_dir(task.task_dir)
        assert task.config.environment.network_mode.value == "no-network"


def test_what_is_asked_for_is_pinned() -> None:
    """A change of the tasks changes what published numbers mean: change this line knowingly."""
    assert builtin_directory("termrl/terminal-mini").name == "terminal-mini-434d7d0d6492fa30"


def test_no_answer_lies_in_what_the_agent_sees() -> None:
    """The longest literal that a test compares an answer with is in no file of the sandbox as it stands."""
    for task in load_harbor_tasks("terminal-mini"):
        test = (task.task_dir / "tests" / "test.sh").read_text()
        answers = re.findall(r"same answer\.txt \$?'([^']{8,})'", test)
        seen = "".join(
            path.read_text() for path in (task.task_dir / "environment").rglob("*") if path.is_file()
        )
        for answer in answers:
            assert answer.replace("\\n", "\n") not in seen, task.task_name


async def solved(task: HarborTask, subject: Subject, trials_dir: Path, places: asyncio.Semaphore) -> str:
    async with places:
        rollout = await attempt(task, "", subject, AttemptSettings(Backend("local"), trials_dir))
    return "solved" if rollout.solved else f"{rollout.outcome}: {rollout.detail}"


@pytest.mark.timeout(900)
async def test_every_oracle_passes_and_doing_nothing_never_does(tmp_path: Path) -> None:
    tasks = load_harbor_tasks("terminal-mini")
    places = asyncio.Semaphore(4)
    oracles = await asyncio.gather(*(solved(task, ORACLE, tmp_path, places) for task in tasks))
    idle = await asyncio.gather(*(solved(task, NO_OP, tmp_path, places) for task in tasks))
    names = [task.task_name for task in tasks]
    assert {name: got for name, got in zip(names, oracles, strict=True) if got != "solved"} == {}
    assert {name: got for name, got in zip(names, idle, strict=True) if not got.startswith("failed")} == {}
