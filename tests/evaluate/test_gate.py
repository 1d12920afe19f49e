"""The task gate in real local sandboxes: sound, broken, trivial, flaky and forgeable tasks told apart."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from termrl.evaluate.gate import GateReport, GateSettings, check_tasks
from termrl.evaluate.gate_attempt import DIGEST, AttemptSettings
from termrl.evaluate.gate_subjects import CHEATERS
from termrl.evaluate.gate_verdict import Finding, Fitness, judge_task
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.sandbox.backends import Backend
from termrl.store import Run
from termrl.tasks import load_harbor_tasks
from termrl.tasks.quarantine import quarantine_path, read_quarantine
from termrl.tasks.scaffold import write_new_task

CONFIG = """\
[environment]
network_mode = "no-network"
storage_mb = 64
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 20
"""
SOLVE = "echo hello > /app/out\n"
REWARD = "echo $reward > /logs/verifier/reward.txt\n"
TEST = f"reward=0; [[ $(cat /app/out) == hello ]] && reward=1; {REWARD}"
LOOP = "while :; do date +%N > /app/pulse; sleep 0.2; done"
SERVE = f"setsid sh -c '{LOOP}' >/dev/null 2>&1 </dev/null &\nsleep 1\n"
PULSE = f"a=$(cat /app/pulse); sleep 1; b=$(cat /app/pulse); reward=0; [[ $a != $b ]] && reward=1; {REWARD}"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "gate-cache"))


def write_task(path: Path, solve: str | None = SOLVE, test: str = TEST, docker: str = "") -> None:
    files = {
        "task.toml": CONFIG,
        "instruction.md": "Say hello",
        "environment/Dockerfile": f"FROM termrl/host\nWORKDIR /app\n{docker}",
        "tests/test.sh": f"#!/bin/bash\n{test}",
    }
    if solve is not None:
        files["solution/solve.sh"] = f"#!/bin/bash\n{solve}"
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)


async def check(tasks_dir: Path, run_path: Path, attempts: int = 2) -> GateReport:
    tasks = load_harbor_tasks(tasks_dir)
    settings = GateSettings(attempts, 4, AttemptSettings(Backend("local"), run_path / "trials"))
    exists = (run_path / "run.sqlite").exists()
    opened = Run.open(run_path, write=True) if exists else Run.create(run_path, kind="check", settings={})
    with opened as run:
        return await check_tasks(run, str(tasks_dir), tasks, settings, lambda *_: None)


def by_name(report: GateReport) -> dict[str, Finding]:
    return {finding.task_name: finding for finding in report.findings}


@pytest.fixture
def two_cheaters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough of them where a test is about something else."""
    monkeypatch.setattr("termrl.evaluate.gate.CHEATERS", CHEATERS[:2])


async def test_no_cheating_agent_passes_a_sound_task(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "sound")
    (finding,) = (await check(tmp_path / "tasks", tmp_path / "run", attempts=1)).findings
    assert (finding.fitness, finding.cheats) == (Fitness.SOUND, f"0 of {len(CHEATERS)}")
    assert len(CHEATERS) > 10


async def test_a_task_that_a_cheating_agent_passes_is_forgeable(tmp_path: Path) -> None:
    """These tests ask only whether a file is there, and one of the cheating agents leaves such files."""
    test = f"reward=0; [[ -e /app/result.txt ]] && reward=1; {REWARD}"
    write_task(tmp_path / "tasks" / "gullible", solve="touch /app/result.txt\n", test=test)
    (finding,) = (await check(tmp_path / "tasks", tmp_path / "run", attempts=1)).findings
    assert finding.fitness is Fitness.FORGEABLE
    assert finding.reason == "cheating agents pass: hang"


@pytest.mark.usefixtures("two_cheaters")
async def test_what_is_wrong_with_a_task_is_found_out_with_evidence(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    write_task(tasks / "sound")
    write_task(tasks / "never", solve="echo goodbye > /app/out\n", test=f"echo wanted hello; {TEST}")
    write_task(tasks / "unbuildable", docker="RUN echo there is no such thing; exit 7\n")
    write_task(tasks / "trivial", test=f"reward=1; {REWARD}")
    write_task(tasks / "no-reward", test="exit 0\n")
    write_task(tasks / "unproven", solve=None)
    write_task(tasks / "serves", solve=SERVE, test=PULSE)
    write_task(tasks / "meddles", solve=f"{SOLVE}echo x >> /etc/hosts\n")
    found = by_name(await check(tasks, tmp_path / "run"))
    assert {name: finding.fitness.value for name, finding in found.items()} == {
        "sound": "sound",
        "never": "broken",
        "unbuildable": "broken",
        "trivial": "trivial",
        "no-reward": "broken",
        "unproven": "unproven",
        "serves": "sound",
        "meddles": "sound",
    }
    assert found["never"].reason == "the oracle never passes"
    assert "wanted hello" in found["never"].evidence
    assert found["unbuildable"].reason == "its sandbox cannot be built"
    assert "there is no such thing" in found["unbuildable"].evidence
    assert found["no-reward"].reason == "its tests end without a reward"
    assert (found["sound"].oracle, found["sound"].no_op) == ("2 of 2", "0 of 2")
    assert found["sound"].needs_processes is False
    assert found["serves"].needs_processes is True
    assert any("/app/pulse" in words for words in found["serves"].processes)
    assert found["meddles"].system_files == ("/etc/hosts",)
    assert found["sound"].system_files == ()


@pytest.mark.usefixtures("two_cheaters")
async def test_a_check_goes_on_where_it_stopped_and_tries_again_what_was_changed(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    write_task(tasks / "one")
    first = await check(tasks, tmp_path / "run")
    write_task(tasks / "two")
    second = await check(tasks, tmp_path / "run")
    assert (second.attempts, second.resumed) == (first.attempts, first.attempts)
    third = await check(tasks, tmp_path / "run")
    assert (third.attempts, third.resumed) == (0, 2 * first.attempts)
    assert by_name(third) == by_name(second)
    write_task(tasks / "one", test=f"reward=1; {REWARD}")
    assert by_name(await check(tasks, tmp_path / "run"))["one"].fitness is Fitness.TRIVIAL


@pytest.mark.usefixtures("two_cheaters")
async def test_more_attempts_at_a_checked_task_add_only_what_is_missing(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "one")
    await check(tmp_path / "tasks", tmp_path / "run", attempts=1)
    assert (await check(tmp_path / "tasks", tmp_path / "run", attempts=3)).attempts == 4


def rollouts(*rewards: float | None) -> Sequence[Rollout]:
    return [
        Rollout(
            task_name="t",
            outcome=Outcome.VERIFIER_FAILED
            if reward is None
            else Outcome.SOLVED
            if reward
            else Outcome.FAILED,
            reward=reward,
            turns=(),
            timings=Timings(),
            detail="",
            trial_dir="",
            tags={DIGEST: "d"},
        )
        for reward in rewards
    ]


@pytest.mark.parametrize(
    ("attempts", "fitness", "words"),
    [
        ({"oracle": (1, 1), "no-op": (0, 0), "cheat:a": (0,)}, "sound", ""),
        ({"oracle": (1, 0, 1), "no-op": (0, 0, 0)}, "flaky", "the oracle passes 2 of 3 times"),
        ({"oracle": (1, None, 1), "no-op": (0, 0, 0)}, "flaky", "the oracle passes 2 of 3 times"),
        ({"oracle": (1, 1), "no-op": (0, 1)}, "flaky", "doing nothing passes 1 of 2 times"),
        ({"oracle": (1, 1), "no-op": (1, 1)}, "trivial", "doing nothing passes 2 of 2 times"),
        ({"oracle": (0, 0)}, "broken", "the oracle never passes"),
        ({"oracle": (None,)}, "broken", "its tests end without a reward"),
        ({"no-op": (None, None)}, "broken", "its tests end without a reward"),
        ({"oracle": (1,), "no-op": (0,), "cheat:a": (1,), "cheat:b": (0,)}, "forgeable", "agents pass: a"),
        ({"no-op": (0,), "cheat:b": (1,)}, "forgeable", "agents pass: b"),
        ({"no-op": (0,)}, "unproven", "there is no solution/solve.sh"),
    ],
)
def test_the_verdict_follows_from_the_attempts(attempts: dict[str, Any], fitness: str, words: str) -> None:
    finding = judge_task("t", {name: rollouts(*rewards) for name, rewards in attempts.items()})
    assert finding.fitness.value == fitness
    assert words in finding.reason


def termrl(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "termrl", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)


def test_a_new_task_passes_its_own_check_and_an_unfit_one_is_put_in_quarantine(tmp_path: Path) -> None:
    made = termrl("tasks", "new", "mine", "output_path=tasks", cwd=tmp_path)
    assert "termrl tasks check tasks/mine" in made.stdout
    good = termrl("tasks", "check", "tasks", "attempts=1", cwd=tmp_path)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "1 tasks: 1 sound" in good.stdout
    assert "[1 of 1] mine is sound" in good.stderr
    write_task(tmp_path / "tasks" / "free", test=f"reward=1; {REWARD}")
    bad = termrl("tasks", "check", "tasks", "attempts=1", "--json", cwd=tmp_path)
    assert bad.returncode == 1, bad.stdout + bad.stderr
    report = json.loads(bad.stdout)
    assert (report["counts"]["trivial"], report["counts"]["sound"]) == (1, 1)
    assert report["attempts_from_before"] > 0
    path = quarantine_path(str(tmp_path / "tasks"), tmp_path / "runs")
    assert Path(report["quarantine"]).name == path.name
    assert read_quarantine(path)["free"].verdict == "trivial"


def test_a_name_that_is_taken_or_none_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    from termrl.errors import UserError

    write_new_task("mine", tmp_path)
    for name in ("mine", "../up", ".hidden", "a/b", ""):
        with pytest.raises(UserError):
            write_new_task(name, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Say which dataset to check"),
        (("tasks", "attempts=0"), "must be 1 or more"),
        (("tasks", "attempts=x"), "not a whole number"),
        (("tasks", "task_ids=nobody"), "has no task nobody"),
        (("tasks", "environment_type=moon"), "moon"),
        (("tasks", "on_bad_task=maybe"), "it is one of error, skip"),
    ],
)
def test_bad_input_to_a_check_is_refused_before_anything_is_made(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    write_task(tmp_path / "tasks" / "one")
    done = termrl("tasks", "check", *words, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()
