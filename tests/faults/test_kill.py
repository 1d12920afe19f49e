"""`kill -9` of a real training run and its engine, then the same command again."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from termrl.errors import UserError
from termrl.store import Place, Run

STEPS, GROUPS, MEMBERS, DEMONSTRATIONS = 3, 2, 3, 6
COMMAND = (
    *(sys.executable, "-m", "termrl", "train"),
    f"max_steps={STEPS}",
    f"batch_size={GROUPS}",
    f"group_size={MEMBERS}",
    "save_every=2",
    "max_turns=2",
    "max_tokens=48",
    "learning_rate=1e-3",
    "remove_constant_reward_groups=false",
    "eval_dataset=none",
    "eval_dataset_families=none",
    "warmup.enabled=true",
    f"warmup.n_demonstrations={DEMONSTRATIONS}",
    "warmup.batch_size=2",
    "n_parallel_envs=3",
)


def start(root: Path, name: str) -> subprocess.Popen[bytes]:
    log = (root / f"{name}.log").open("ab")
    return subprocess.Popen(
        [*COMMAND, f"run_root={root}", f"run_name={name}"],
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(root: Path, name: str) -> None:
    process = start(root, name)
    assert process.wait(timeout=240) == 0, (root / f"{name}.log").read_text()[-3000:]


def kill_when_stored(root: Path, name: str, count: int) -> dict[Place, float]:
    """Kills the run and all it started once `count` training rollouts are stored; what was stored by then."""
    process = start(root, name)
    deadline = time.monotonic() + 240
    while len(stored(root / name)) < count:
        assert process.poll() is None, (root / f"{name}.log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return stored(root / name)


def stored(path: Path) -> dict[Place, float]:
    """The training rollouts on disk, each with the moment it was committed."""
    try:
        with Run.open(path) as run:
            return run.committed("train")
    except UserError:
        return {}


def final_weights(path: Path) -> dict[str, bytes]:
    """Every tensor of the last checkpoint, weights and optimizer, bit by bit."""
    with Run.open(path) as run:
        last = run.checkpoints()[-1]
    assert last.step == STEPS
    model, _, name = last.state_path.removeprefix("tinker://").split("/")
    (file,) = (path / "engine").rglob(f"weights/{name}.safetensors")
    assert model
    tensors = load_file(file)
    assert tensors
    return {key: tensor.tobytes() for key, tensor in tensors.items()}


@pytest.mark.timeout(900)
def test_a_killed_run_goes_on_loses_nothing_repeats_nothing_and_ends_in_the_same_weights(
    tmp_path: Path,
) -> None:
    finish(tmp_path, "whole")
    before: dict[Place, float] = {}
    for count in (2, GROUPS * MEMBERS + 1, 2 * GROUPS * MEMBERS + 3):
        now = kill_when_stored(tmp_path, "broken", count)
        assert before.items() <= now.items(), "a rollout that was stored was sampled again"
        before = now
    finish(tmp_path, "broken")
    after = stored(tmp_path / "broken")
    assert before.items() <= after.items()
    assert len(after) == STEPS * GROUPS * MEMBERS
    with Run.open(tmp_path / "broken") as broken, Run.open(tmp_path / "whole") as whole:
        assert sorted(broken.steps()) == list(range(STEPS))
        ours = {place: [turn.sampled for turn in r.turns] for place, r in broken.rollouts("train").items()}
        theirs = {place: [turn.sampled for turn in r.turns] for place, r in whole.rollouts("train").items()}
    assert ours == theirs
    assert final_weights(tmp_path / "broken") == final_weights(tmp_path / "whole")


@pytest.mark.timeout(300)
def test_a_finished_run_named_again_does_nothing_and_says_so(tmp_path: Path) -> None:
    finish(tmp_path, "done")
    before = stored(tmp_path / "done")
    finish(tmp_path, "done")
    assert stored(tmp_path / "done") == before
    assert f"has its {STEPS} steps already" in (tmp_path / "done.log").read_text()


@pytest.mark.timeout(900)
def test_an_off_policy_run_killed_at_random_ends_in_the_weights_of_its_stored_rollouts() -> None:
    kills = Path(__file__).parents[2] / "bench" / "kills.py"
    ended = subprocess.run(
        [sys.executable, str(kills), "--modes", "async", "--kills", "2", "--steps", "3", "--check"],
        capture_output=True,
        text=True,
        timeout=880,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    assert re.search("async: [12] kills over 3 steps: nothing lost", ended.stdout), ended.stdout


@pytest.mark.timeout(900)
def test_an_interrupt_ends_what_is_in_flight_a_second_one_stops_at_once_and_both_can_go_on(
    tmp_path: Path,
) -> None:
    finish(tmp_path, "whole")
    for count, interrupts in ((2, 1), (GROUPS * MEMBERS + 2, 2)):
        process = start(tmp_path, "broken")
        deadline = time.monotonic() + 240
        while len(stored(tmp_path / "broken")) < count:
            assert process.poll() is None, (tmp_path / "broken.log").read_text()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.02)
        before = stored(tmp_path / "broken")
        for _ in range(interrupts):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert process.wait(timeout=120) == 130
        assert before.items() <= stored(tmp_path / "broken").items()
    log = (tmp_path / "broken.log").read_text()
    assert "Ending what is in flight" in log
    assert "`termrl train run_name=broken` goes on from what is stored" in log
    finish(tmp_path, "broken")
    assert final_weights(tmp_path / "broken") == final_weights(tmp_path / "whole")
