"""Rollouts in real Docker containers, honest ones and others: part of `make test-all`."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import docker_engine
from termrl.rollout.cheats import CHEATS
from termrl.rollout.outcome import Outcome
from termrl.rollout.pool import RolloutPool
from termrl.sandbox.backends import Backend
from termrl.sandbox.choice import environment_settings, make_ready
from termrl.tasks.task import load_harbor_task

pytestmark = pytest.mark.docker


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made: str = docker_engine.make_image(tmp_path_factory.mktemp("image"), "tmux")
    return made


@pytest.fixture
def small_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An engine of its own whose whole disk is small, and the image in it."""
    home = Path(tempfile.mkdtemp(prefix="termrl-small-"))  # a socket's path has to be short
    environ = {**os.environ, "TERMRL_ENGINE_HOME": str(home), "TERMRL_ENGINE_DISK": "256m"}
    script = str(ROOT / "scripts" / "docker-engine.sh")
    try:
        subprocess.run([script, "up"], env=environ, check=True, capture_output=True)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{home}/docker.sock")
        yield docker_engine.make_image(tmp_path / "small", "tmux")
    finally:
        subprocess.run([script, "down"], env=environ, check=True, capture_output=True)
    assert not home.exists()


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
    # Files in memory belong to nobody: the kernel ends one process after another and gains nothing by it. The
    # smaller one leaves room for the terminal and next to none for what looks at programs.
    for size in (29_500_000, 60_000_000):
        eat = say(f"head -c {size} /dev/zero > /dev/shm/fill", duration=3.0)
        pool = RolloutPool(bench.runner(**where), concurrency=1, retries=1, backoff_seconds=0)
        hungry = await pool.run(task, bench.script([eat, say(done=True), say(done=True)]), seed=0)
        # Which of its processes go first is the kernel's choice; in no case may the rollout escape its 0, and
        # in none is hunger a cheat.
        assert (hungry.outcome.scored, hungry.reward) == (True, 0.0), hungry.detail
        assert hungry.outcome is not Outcome.TAMPERED, hungry.detail
    spare = bench.write_task("spared", {"environment/Dockerfile": f"FROM {image}\nWORKDIR /app\n"})
    kill = (
        "for p in /proc/[0-9]*; do case $(cat $p/comm) in sleep) kill -9 ${p#/proc/};; esac; done; kill -9 1"
    )
    script = [say(kill), say("echo hello > /app/hello.txt", done=True), say(done=True)]
    spared = await bench.run(script, task=spare, **on_docker(spare))
    assert (spared.outcome, spared.reward) == (Outcome.SOLVED, 1.0), spared.detail


async def test_an_agent_that_fills_the_disk_scores_nothing_and_does_not_escape(
    bench: Any, say: Any, small_engine: str
) -> None:
    task = bench.write_task("filled", {"environment/Dockerfile": f"FROM {small_engine}\nWORKDIR /app\n"})
    where = on_docker(task)
    cheat = {"agent": "termrl.rollout.cheats:CheatingAgent", "agent_kwargs": (("cheat", "disk"),)}
    pool = RolloutPool(bench.runner(**cheat, **where), concurrency=1, retries=1, backoff_seconds=0)
    cheated = await pool.run(task, bench.script([]), seed=0)
    assert (cheated.outcome, cheated.reward) == (Outcome.TAMPERED, 0.0), cheated.detail
    # One that only fills it, so that no test arrives, has not been seen cheating, and scores no more.
    fill = [say("dd if=/dev/zero of=/fill bs=1M", duration=5.0), say(done=True), say(done=True)]
    pool = RolloutPool(bench.runner(**where), concurrency=1, retries=1, backoff_seconds=0)
    filled = await pool.run(task, bench.script(fill), seed=0)
    assert (filled.outcome.scored, filled.reward) == (True, 0.0), (filled.outcome, filled.detail)
