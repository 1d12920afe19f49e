"""Terminus-2 at a task in a real Docker container: part of `make test-all`."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from termrl.rollout.outcome import Outcome
from termrl.sandbox.backends import Backend
from termrl.sandbox.choice import environment_settings, make_ready
from termrl.tasks.task import load_harbor_task

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = Path(__file__).parents[1] / "sandbox" / "engine.py"
    spec = importlib.util.spec_from_file_location("engine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: str = module.make_image(tmp_path_factory.mktemp("image"), "tmux")
    return made


async def test_a_scripted_policy_solves_a_task_in_a_container(
    bench: Any, say_hello: list[str], image: str
) -> None:
    task = bench.write_task("docked", {"environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n"})
    tasks = [load_harbor_task(task.task_dir)]
    backend = Backend("docker")
    make_ready(backend, tasks)
    rollout = await bench.run(say_hello, task=task, **environment_settings(backend, tasks))
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), rollout.detail
