"""Everything that holds for root holds for a user who is nobody in particular."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAME_FOR_ALL = (
    "clouds",
    "injected",
    "dockerfile",
    "recipe",
    "bridge",
    "leftovers",
    "docker",
    "ordinary_user",
    "backends",
    "readiness",
)
"""Tests of what does not depend on who runs it."""


@pytest.mark.timeout(900)
def test_the_rest_of_this_directory_passes_as_an_ordinary_user() -> None:
    if os.getuid() != 0:
        return  # then the run that this test is part of already is such a one
    others = sorted(
        str(path) for path in HERE.glob("test_*.py") if path.stem.removeprefix("test_") not in SAME_FOR_ALL
    )
    project = HERE.parents[1]
    # Not pytest's own temporary directory: every pytest closes that to other users when it starts.
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, str(HERE / "ordinary.py"), home, sys.executable, "-m", "pytest", "-q"]
        command += ["-p", "no:cacheprovider", "--basetemp", f"{home}/tmp"]
        command += ["--rootdir", str(project), "-c", str(project / "pyproject.toml"), *others]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=840)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]


@pytest.mark.docker
@pytest.mark.timeout(600)
def test_an_ordinary_user_with_subordinate_ids_has_users_and_owners_too() -> None:
    """Part of `make test-all`, which sees to Debian's uidmap."""
    assert os.getuid() == 0
    with tempfile.TemporaryDirectory() as home:
        project = HERE.parents[1]
        command = [sys.executable, str(HERE / "ordinary.py"), home, sys.executable, "-m", "pytest", "-q"]
        command += ["-p", "no:cacheprovider", "--basetemp", f"{home}/tmp", "--rootdir", str(project)]
        command += [
            "-c",
            str(project / "pyproject.toml"),
            str(HERE / "test_images.py"),
            str(HERE / "test_layers.py"),
        ]
        environment = {**os.environ, "WITH_SUBORDINATE_IDS": "1"}
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=500, env=environment
        )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
