"""Everything that holds for root holds for a user who is nobody in particular."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_the_rest_of_this_directory_passes_as_an_ordinary_user(tmp_path: Path) -> None:
    if os.getuid() != 0:
        return  # then the run that this test is part of already is such a one
    others = sorted(str(path) for path in HERE.glob("test_*.py") if path.name != Path(__file__).name)
    home = tmp_path / "home"
    home.mkdir()
    for parent in tmp_path, *tmp_path.parents[:2]:
        parent.chmod(0o755)
    project = HERE.parents[1]
    command = [sys.executable, str(HERE / "ordinary.py"), str(home), sys.executable, "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "--basetemp", str(home / "tmp")]
    command += ["--rootdir", str(project), "-c", str(project / "pyproject.toml"), *others]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
