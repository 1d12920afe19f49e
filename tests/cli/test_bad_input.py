"""What is wrong with the input is one sentence and exit code 2, before a run is made."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from termrl.engine.catalog import resolve_model
from termrl.store import Run
from termrl.store.run import DATABASE
from termrl.tasks import load_harbor_tasks


def train(*settings: str, directory: Path) -> tuple[int, list[str]]:
    """The exit code of `termrl train` and the lines it complained with."""
    ended = subprocess.run(
        [sys.executable, "-m", "termrl", "train", *settings],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return ended.returncode, ended.stderr.strip().splitlines()


@pytest.fixture
def task_dir(tmp_path: Path) -> Path:
    """A copy of a good task, to be spoiled."""
    task = load_harbor_tasks("termrl/basics:train")[0]
    return Path(shutil.copytree(task.task_dir, tmp_path / "tasks" / "spoiled"))


def assert_refused(code: int, complaint: list[str], *words: str, directory: Path) -> None:
    assert code == 2
    assert len(complaint) == 1, complaint
    assert complaint[0].startswith("error: ")
    for word in words:
        assert word in complaint[0]
    assert not (directory / "runs").exists()


def test_a_task_without_tests(task_dir: Path, tmp_path: Path) -> None:
    shutil.rmtree(task_dir / "tests")
    code, complaint = train(f"dataset={tmp_path / 'tasks'}", directory=tmp_path)
    assert_refused(code, complaint, str(task_dir), "test", directory=tmp_path)


def test_a_malformed_task_toml(task_dir: Path, tmp_path: Path) -> None:
    (task_dir / "task.toml").write_text("[agent\ntimeout_sec = 1\n")
    code, complaint = train(f"dataset={tmp_path / 'tasks'}", directory=tmp_path)
    assert_refused(code, complaint, str(task_dir / "task.toml"), "line 1", directory=tmp_path)


def test_a_model_directory_without_a_tokenizer(tmp_path: Path) -> None:
    model = Path(shutil.copytree(resolve_model("termrl/tiny"), tmp_path / "model"))
    (model / "tokenizer.json").unlink()
    code, complaint = train(f"model_name={model}", directory=tmp_path)
    assert_refused(code, complaint, str(model), "tokenizer.json", directory=tmp_path)


def test_an_unknown_setting(tmp_path: Path) -> None:
    code, complaint = train("learning_rat=1", directory=tmp_path)
    assert_refused(code, complaint, "learning_rat", "did you mean learning_rate", directory=tmp_path)


def test_an_unknown_dataset(tmp_path: Path) -> None:
    code, complaint = train("dataset=termrl/basic:train", directory=tmp_path)
    assert_refused(code, complaint, "did you mean", directory=tmp_path)


def test_a_run_of_another_version(tmp_path: Path) -> None:
    Run.create(tmp_path / "runs" / "old", kind="train", settings={}).close()
    database = sqlite3.connect(tmp_path / "runs" / "old" / DATABASE)
    database.execute("PRAGMA user_version=7")
    database.close()
    before = (tmp_path / "runs" / "old" / DATABASE).read_bytes()
    code, complaint = train("run_name=old", directory=tmp_path)
    assert code == 2
    assert len(complaint) == 1
    assert "version 7" in complaint[0]
    assert (tmp_path / "runs" / "old" / DATABASE).read_bytes() == before


def test_a_server_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    code, complaint = train("base_url=http://127.0.0.1:9", directory=tmp_path)
    assert_refused(code, complaint, "TINKER_API_KEY", directory=tmp_path)
