"""A disk that is really full: a small tmpfs in a mount namespace of its own."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import random, sys
from pathlib import Path
from termrl.errors import StorageError
from termrl.policy.transcript import Turn
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.store import Place, Run

path = Path(sys.argv[1]) / "run"
run = Run.create(path, kind="train", settings={})
rng = random.Random(0)
stored = 0
try:
    while stored < 10_000:
        ids = tuple(rng.randrange(50_000) for _ in range(2_000))
        turn = Turn(ids, ids, (0.0,) * len(ids), 0, "stop")
        rollout = Rollout("a-task", Outcome.SOLVED, 1.0, (turn,), Timings())
        run.add_rollout(Place("train", 0, 0, stored), rollout)
        stored += 1
except StorageError as error:
    print(f"exit code {error.exit_code}: {error}")
run.close()
with Run.open(path) as run:
    kept = run.rollouts("train")
    assert len(kept) == stored > 10, (len(kept), stored)
    assert all(len(rollout.turns[0].prompt) == 2_000 for rollout in kept.values())
print(f"kept {len(kept)}")
"""


def test_a_full_disk_is_said_and_loses_nothing_already_stored(tmp_path: Path) -> None:
    script = tmp_path / "fill.py"
    script.write_text(SCRIPT)
    disk = tmp_path / "disk"
    disk.mkdir()
    inside = f"mount -t tmpfs -o size=1m tmpfs {disk} && exec {sys.executable} {script} {disk}"
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", inside],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    said, kept = ended.stdout.strip().splitlines()
    assert said.startswith("exit code 1: Could not write a rollout of a-task to ")
    assert "full" in said
    assert "run the same command again" in said
    assert kept.startswith("kept ")
