"""What is built in or fetched goes below a directory of the test session, never to the user's cache."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

IMAGE = "termrl/host"
SMALL_ROOT = Path(__file__).parents[2] / "scripts" / "small_root.py"
PROGRAMS = (
    *("git", "make", "python3", "awk", "bzip2", "cksum", "cmp", "diff", "expr", "mktemp", "nohup", "printf"),
    *("setsid", "sleep", "tac", "tmux", "tty", "uniq", "zcat", "gunzip", "comm", "paste", "clear", "uptime"),
)
CONFIG = '[metadata]\nfamily = "greeting"\n\n[environment]\nnetwork_mode = "no-network"\n'


@pytest.fixture(scope="session", autouse=True)
def task_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of one's own, with empty caches of Harbor's and of ours."""
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / ".cache"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return directory


def write_task(task_dir: Path, config: str = CONFIG, **files: str) -> Path:
    contents = {
        "task.toml": config,
        "instruction.md": "Say hello",
        "environment/Dockerfile": "FROM termrl/host\nWORKDIR /app\n",
        "solution/solve.sh": "#!/bin/bash\necho hello > /app/out\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        **files,
    }
    for path, content in contents.items():
        (task_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (task_dir / path).write_text(content)
    return task_dir


type MakeTask = Callable[..., Path]


@pytest.fixture
def make_task() -> MakeTask:
    """Writes a whole task: `make_task(path, config=..., **{"tests/test.sh": ...})`."""
    return write_task


class GitRepository:
    """A git repository on disk, addressed as others are, by a URL."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self._git("init", "-q", "-b", "main")

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def commit(self) -> str:
        """Everything that is there, as a new commit; gives its id."""
        self._git("add", "-A")
        self._git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", "tasks")
        return self._git("rev-parse", "HEAD")

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.path, check=True, capture_output=True, text=True)
        return done.stdout.strip()


@pytest.fixture
def git_repository(tmp_path: Path) -> GitRepository:
    return GitRepository(tmp_path / "repositories" / "someone" / "tasks.git")


@pytest.fixture(scope="session")
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
