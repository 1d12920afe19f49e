"""`termrl train dry_run=true` checks what a run would need and estimates a step, and makes no run."""

import os
import re
import subprocess
import sys
from pathlib import Path


def dry_run(*settings: str, directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TINKER_API_KEY"}
    return subprocess.run(
        [sys.executable, "-m", "termrl", "train", "config=quickstart", "dry_run=true", *settings],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def figures(output: str, kind: str) -> tuple[int, int]:
    """The estimate of a step's tokens of this kind, and the most that the settings allow."""
    found = re.search(rf"{kind} tokens +([\d,]+) to ([\d,]+)", output)
    assert found is not None, output
    likely, most = (int(number.replace(",", "")) for number in found.groups())
    return likely, most


def test_a_step_is_estimated_from_scripted_rollouts_and_no_run_is_made(tmp_path: Path) -> None:
    small = dry_run("batch_size=4", directory=tmp_path)
    large = dry_run("batch_size=8", directory=tmp_path)
    assert (small.returncode, large.returncode) == (0, 0), small.stderr + large.stderr
    for kind in ("prefill", "sampled", "trained"):
        likely, most = figures(small.stdout, kind)
        assert 0 < likely <= most
        assert figures(large.stdout, kind) == (2 * likely, 2 * most)
    assert "nothing was spent" in small.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_credential_that_is_missing_is_found_out_before_anything_runs(tmp_path: Path) -> None:
    ended = dry_run("base_url=http://127.0.0.1:9", directory=tmp_path)
    assert ended.returncode == 2
    assert "there is no TINKER_API_KEY" in ended.stderr
    assert list(tmp_path.iterdir()) == []
