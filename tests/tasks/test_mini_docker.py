"""`termrl/terminal-mini` in Docker: every oracle passes there too. Part of `make test-all`."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from termrl.evaluate.gate_attempt import AttemptSettings, attempt
from termrl.evaluate.gate_subjects import ORACLE
from termrl.sandbox.backends import Backend
from termrl.tasks import HarborTask, load_harbor_tasks

pytestmark = pytest.mark.docker

IMAGE = "termrl/host"
SMALL_ROOT = Path(__file__).parents[2] / "scripts" / "small_root.py"
PROGRAMS = (
    *("git", "make", "python3", "awk", "bzip2", "cksum", "cmp", "diff", "expr", "mktemp", "nohup", "printf"),
    *("setsid", "sleep", "tac", "tmux", "tty", "uniq", "zcat", "gunzip", "comm", "paste", "clear", "uptime"),
)


@pytest.fixture(scope="module")
def host_image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The base of the built-in tasks as an image of this machine's own programs, if there is none yet."""
    if subprocess.run(["docker", "images", "-q", IMAGE], capture_output=True, check=True).stdout:
        yield
        return
    folder = tmp_path_factory.mktemp("host")
    root = folder / "root"
    # The system's programs, not those of a Python that only this user has.
    path = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    subprocess.run([sys.executable, str(SMALL_ROOT), str(root), *PROGRAMS], check=True, env=path)
    for tree in ("/usr/lib/git-core", "/usr/share/git-core", *map(str, Path("/usr/lib").glob("python3*"))):
        if Path(tree).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "test", "config-*")
            shutil.copytree(tree, root / tree[1:], symlinks=True, dirs_exist_ok=True, ignore=ignored)
    for module in root.glob("usr/lib/python3*/lib-dynload/*.so"):
        listing = subprocess.run(["ldd", str(module)], capture_output=True, text=True, check=False).stdout
        for library in (Path(word) for word in listing.split() if word.startswith("/")):
            if not (root / "usr/lib" / library.name).exists():
                shutil.copy(library.resolve(), root / "usr/lib" / library.name)
    packed = folder / "root.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(packed), "."], check=True)
    subprocess.run(["docker", "import", str(packed), IMAGE], check=True, capture_output=True)
    yield
    subprocess.run(["docker", "rmi", "-f", IMAGE], check=False, capture_output=True)


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("host_image")
async def test_every_oracle_passes_in_docker(tmp_path: Path) -> None:
    settings = AttemptSettings(Backend("docker"), tmp_path / "trials")
    places = asyncio.Semaphore(4)

    async def outcome(task: HarborTask) -> str:
        async with places:
            rollout = await attempt(task, "", ORACLE, settings)
        return "solved" if rollout.solved else f"{rollout.outcome}: {rollout.detail}"

    tasks = load_harbor_tasks("terminal-mini")
    found = await asyncio.gather(*map(outcome, tasks))
    unsolved = {task.task_name: got for task, got in zip(tasks, found, strict=True) if got != "solved"}
    assert unsolved == {}
