"""`kill -9` of a real evaluation, then the same command again: only what was in flight is run again."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

TASKS, ATTEMPTS = 4, 2
COMMAND = (
    *(sys.executable, "-m", "termrl", "eval"),
    f"task_indices=0-{TASKS - 1}",
    f"attempts={ATTEMPTS}",
    "max_turns=2",
    "max_tokens=32",
    "sandbox_concurrency=2",
)


def start(root: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, f"run_root={root}"],
        stdout=(root / "log").open("ab"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def stored(root: Path) -> dict[tuple[int, int], tuple[float, bytes]]:
    """The rollouts on disk, each with the moment it was committed and what was sampled."""
    for database in root.glob("*/run.sqlite"):
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)
        try:
            rows = connection.execute(
                "SELECT group_index, member, finished_at, turns FROM rollouts"
            ).fetchall()
        except sqlite3.OperationalError:
            return {}
        finally:
            connection.close()
        return {(row[0], row[1]): (row[2], row[3]) for row in rows}
    return {}


@pytest.mark.timeout(1200)
def test_a_killed_evaluation_goes_on_with_the_same_command_and_loses_only_what_was_in_flight(
    tmp_path: Path,
) -> None:
    process = start(tmp_path)
    deadline = time.monotonic() + 500
    while len(stored(tmp_path)) < 3:
        assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = stored(tmp_path)
    assert 3 <= len(before) < TASKS * ATTEMPTS

    assert start(tmp_path).wait(timeout=500) == 0, (tmp_path / "log").read_text()[-3000:]
    after = stored(tmp_path)
    assert before.items() <= after.items(), "a rollout that was stored was run again"
    assert len(after) == TASKS * ATTEMPTS
    (run,) = (path.parent for path in tmp_path.glob("*/run.sqlite"))
    results = json.loads((run / "results.json").read_text())
    assert results["counts"]["rollouts"] == TASKS * ATTEMPTS
    assert len(list((run / "rollouts").glob("*.json"))) == TASKS * ATTEMPTS
    assert f"{len(before)} rollouts are stored already" in (tmp_path / "log").read_text()
    assert all(json.loads(path.read_text())["turns"] for path in (run / "rollouts").glob("*.json")), (
        "a rollout's file has lost what was said"
    )
