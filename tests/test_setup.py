"""Set-up, by its real script on a small project: its packages are made here, so no network is needed."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BASE_PYTHON = Path(getattr(sys, "_base_executable", sys.executable))

BACKEND = """
import zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "termrl-0.1.0-py3-none-any.whl"
    info = "termrl-0.1.0.dist-info"
    files = {
        "termrl.py": "def main(): print('termrl is here')",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: termrl\\nVersion: 0.1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        f"{info}/entry_points.txt": "[console_scripts]\\ntermrl = termrl:main\\n",
    }
    with zipfile.ZipFile(f"{directory}/{name}", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"]))
    return name
"""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "termrl"
version = "0.1.0"
"""


class Project:
    """A directory with the real set-up script and a machine of its own: PATH, home, packages."""

    def __init__(self, path: Path) -> None:
        self.path = path / "project"
        self.home = path / "home"
        self.bin = path / "bin"
        self.wheels = path / "wheels"
        for directory in (self.path / "scripts", self.home, self.bin, self.wheels):
            directory.mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "setup.sh", self.path / "scripts")
        (self.path / "pyproject.toml").write_text(PYPROJECT)
        (self.path / "backend.py").write_text(BACKEND)
        digest = _make_wheel(self.wheels, "probe")
        dev_digest = _make_wheel(self.wheels, "devprobe")
        probe = f"probe==1.0 \\\n    --hash=sha256:{digest}\n"
        (self.path / "requirements.lock").write_text(probe)
        (self.path / "requirements-dev.lock").write_text(
            f"devprobe==1.0 \\\n    --hash=sha256:{dev_digest}\n{probe}"
        )
        for directory in ("/usr/local/bin", "/usr/bin", "/bin"):
            for tool in Path(directory).iterdir():
                if not tool.name.startswith(("python", "pip", "pyenv", "uv", "tmux", "apt")):
                    target = self.bin / tool.name
                    if not target.is_symlink():
                        target.symlink_to(tool)

    def tool(self, name: str, script: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def python(self, name: str = "python3.12") -> None:
        self.tool(name, f'exec "{BASE_PYTHON}" "$@"')

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": str(self.bin),
            "HOME": str(self.home),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
            "PIP_CONFIG_FILE": os.devnull,
        }

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["scripts/setup.sh", *arguments],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # A shell started in the background ignores Ctrl-C, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def has(self, module: str) -> bool:
        code = f"import {module}"
        return (
            subprocess.run([self.path / ".venv/bin/python", "-c", code], capture_output=True).returncode == 0
        )


def _make_wheel(directory: Path, name: str) -> str:
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = directory / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            wheel.writestr(member, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in [*files, f"{info}/RECORD"]))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    (project.bin / "tmux").symlink_to("/usr/bin/env")
    return project


def test_set_up_installs_the_lock_once_and_again_only_what_changed(project: Project) -> None:
    project.python()
    code, out, err = project.run()
    assert (code, err) == (0, "")
    assert "Python: 3." in out
    assert "ready" in out
    assert project.has("probe")
    assert not project.has("devprobe")
    command = subprocess.run([project.path / ".venv/bin/termrl"], capture_output=True, text=True)
    assert command.stdout == "termrl is here\n"

    began = time.monotonic()
    assert project.run() == (0, "", "")
    assert time.monotonic() - began < 1

    # What the tests need is added, and serves a default set-up too.
    assert project.run("dev")[0] == 0
    assert project.has("devprobe")
    assert project.run("dev") == (0, "", "")
    assert project.run() == (0, "", "")

    # A lock that changed is installed.
    digest = _make_wheel(project.wheels, "third")
    with (project.path / "requirements.lock").open("a") as lock:
        lock.write(f"third==1.0 \\\n    --hash=sha256:{digest}\n")
    assert project.run()[0] == 0
    assert project.has("third")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_set_up_is_made_again_by_the_same_command(
    project: Project, how: signal.Signals
) -> None:
    project.python()
    process = project.start()
    deadline = time.monotonic() + 60
    while not (project.path / ".venv/bin/python").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, how)
    _, err = process.communicate(timeout=30)
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert "run the same command again" in err

    code, out, err = project.run()
    assert (code, err) == (0, "")
    assert "interrupted: making .venv again" in out
    assert project.has("probe")


def test_a_project_that_was_moved_gets_a_new_environment(project: Project) -> None:
    project.python()
    project.run()
    moved = project.path.with_name("moved")
    project.path.rename(moved)
    project.path = moved
    code, out, _ = project.run()
    assert code == 0
    assert "moved" in out
    assert project.has("probe")


def test_an_environment_that_set_up_did_not_make_is_kept(project: Project) -> None:
    project.python()
    (project.path / ".venv").mkdir()
    (project.path / ".venv" / "mine").write_text("mine")
    code, out, _ = project.run()
    assert code == 0
    (kept,) = project.path.glob(".venv.kept-*")
    assert (kept / "mine").read_text() == "mine"
    assert kept.name in out


def test_without_python_3_12_it_says_so_in_one_sentence_and_exits_with_2(project: Project) -> None:
    project.tool("python3", "echo 'SyntaxError: invalid syntax' >&2; exit 1")
    project.tool("python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    code, _, err = project.run()
    assert code == 2
    assert err.count("\n") == 1
    assert "no Python 3.12 or newer was found" in err
    assert "pyenv install 3.12" in err
    assert not (project.path / ".venv").exists()


def test_a_python_under_pyenv_is_found_behind_a_shim_that_fails(project: Project) -> None:
    project.tool("python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    version = project.home / ".pyenv/versions/3.12.99/bin"
    version.mkdir(parents=True)
    (version / "python").write_text(f'#!/bin/sh\nexec "{BASE_PYTHON}" "$@"\n')
    (version / "python").chmod(0o755)
    code, _, err = project.run()
    assert (code, err) == (0, "")


def test_a_package_that_is_not_the_locked_one_is_refused(project: Project) -> None:
    project.python()
    with (project.wheels / "probe-1.0-py3-none-any.whl").open("ab") as wheel:
        wheel.write(b"tampered")
    code, _, err = project.run()
    assert code == 2
    assert "requirements.lock could not be installed" in err
    assert not project.has("probe")


def test_tmux_is_unpacked_into_the_project_for_an_ordinary_user(project: Project, tmp_path: Path) -> None:
    project.python()
    (project.bin / "tmux").unlink()
    project.tool("id", "echo 1000")
    package = tmp_path / "package"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "usr/bin").mkdir(parents=True)
    (package / "usr/bin/tmux").write_text("#!/bin/sh\necho tmux 3.3a\n")
    (package / "usr/bin/tmux").chmod(0o755)
    (package / "DEBIAN/control").write_text(
        "Package: tmux\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: d\n"
    )
    subprocess.run(["dpkg-deb", "--build", package, tmp_path / "tmux.deb"], check=True, capture_output=True)
    project.tool("apt-get", f'for last; do :; done; cp "{tmp_path}/tmux.deb" "$last.deb"')

    code, out, err = project.run()
    assert (code, err) == (0, "")
    assert "unpacking" in out
    tmux = project.path / ".tools/tmux/usr/bin/tmux"
    assert subprocess.run([tmux], capture_output=True, text=True).stdout == "tmux 3.3a\n"
    assert project.run() == (0, "", "")


def test_tmux_that_cannot_be_had_is_named_in_one_sentence(project: Project) -> None:
    project.python()
    (project.bin / "tmux").unlink()
    code, _, err = project.run()
    assert code == 2
    assert err.count("\n") == 1
    assert "tmux is missing" in err
    assert project.has("probe"), "what was installed before stays"


def test_an_unknown_kind_of_set_up_is_refused(project: Project) -> None:
    code, _, err = project.run("developer")
    assert code == 2
    assert "'developer' is not a kind of set-up" in err
