"""Rollouts in real Docker containers, honest ones and others: part of `make test-all`."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from termrl.rollout.cheats import CHEATS
from termrl.rollout.outcome import Outcome
from termrl.rollout.pool import RolloutPool
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


def on_docker(task: Any) -> dict[str, Any]:
    tasks = [load_harbor_task(task.task_dir)]
    backend = Backend("docker")
    make_ready(backend, tasks)
    return environment_settings(backend, tasks)


async def test_a_scripted_policy_solves_a_task_in_a_container(
    bench: Any, say_hello: list[str], image: str
) -> None:
    task = bench.write_task("docked", {"environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n"})
    rollout = await bench.run(say_hello, task=task, **on_docker(task))
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), rollout.detail


SEEN = ("reward-json", "patient-daemon", "tests-daemon", "symlinks", "bash")
"""One of each kind that is dealt with otherwise than in our own sandbox."""


async def test_cheating_agents_score_nothing_in_containers(bench: Any, image: str) -> None:
    assert set(SEEN) <= {cheat.name for cheat in CHEATS}
    task = bench.write_task("guarded", {"environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n"})
    where = on_docker(task)

    async def run(cheat: str) -> Any:
        settings = {"agent": "termrl.rollout.cheats:CheatingAgent", "agent_kwargs": (("cheat", cheat),)}
        pool = RolloutPool(bench.runner(**settings, **where), concurrency=1, retries=1, backoff_seconds=0)
        return await pool.run(task, bench.script([]), seed=0)

    rollouts = await asyncio.gather(*(run(cheat) for cheat in SEEN))
    ended = {cheat: (each.outcome, each.reward) for cheat, each in zip(SEEN, rollouts, strict=True)}
    assert ended == dict.fromkeys(SEEN, (Outcome.TAMPERED, 0.0)), [each.detail for each in rollouts]


async def test_a_container_that_the_agents_own_use_ended_is_scored_and_no_signal_from_inside_ends_one(
    bench: Any, say: Any, image: str
) -> None:
    toml = (
        (bench.task.task_dir / "task.toml")
        .read_text()
        .replace("[environment]", "[environment]\nmemory_mb = 32")
    )
    files = {"environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n", "task.toml": toml}
    task = bench.write_task("hungry", files)
    where = on_docker(task)
    # Files in memory belong to nobody: the kernel ends one process after another and gains nothing by it.
    eat = say("head -c 60000000 /dev/zero > /dev/shm/fill", duration=3.0)
    pool = RolloutPool(bench.runner(**where), concurrency=1, retries=1, backoff_seconds=0)
    hungry = await pool.run(task, bench.script([eat, say(done=True), say(done=True)]), seed=0)
    # Which of its processes go first is the kernel's choice; in no case may the rollout escape its 0, and in
    # none is hunger a cheat.
    assert (hungry.outcome.scored, hungry.reward) == (True, 0.0), hungry.detail
    assert hungry.outcome is not Outcome.TAMPERED, hungry.detail
    spare = bench.write_task("spared", {"environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n"})
    kill = (
        "for p in /proc/[0-9]*; do case $(cat $p/comm) in sleep) kill -9 ${p#/proc/};; esac; done; kill -9 1"
    )
    script = [say(kill), say("echo hello > /app/hello.txt", done=True), say(done=True)]
    spared = await bench.run(script, task=spare, **on_docker(spare))
    assert (spared.outcome, spared.reward) == (Outcome.SOLVED, 1.0), spared.detail
