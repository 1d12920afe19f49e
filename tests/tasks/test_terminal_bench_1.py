"""Terminal-Bench 1 tasks and datasets, converted on the fly; their tests' results become the reward."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from harbor.models.task.task import Task

from termrl.tasks import load_dataset, load_harbor_tasks
from termrl.tasks.errors import ConversionError, UnknownDatasetError

COMPOSE = """\
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
"""
DATABASE = "  database:\n    image: postgres:16\n"
ALL_PASS = "PASSED tests/test_outputs.py::test_file\nPASSED tests/test_outputs.py::test_content\n"
ONE_FAILS = (
    "PASSED tests/test_outputs.py::test_file\nFAILED tests/test_outputs.py::test_content - AssertionError\n"
)
HEADER = "=========================== short test summary info ============================\n"


def make_old_task(
    path: Path, printed: str = HEADER + ALL_PASS, compose: str = COMPOSE, **changes: Any
) -> Path:
    path.mkdir(parents=True)
    settings = {
        "instruction": "Make hello.txt",
        "difficulty": "easy",
        "category": "file-operations",
        "parser_name": "pytest",
        "max_agent_timeout_sec": 180.0,
        "max_test_timeout_sec": 30.0,
        **changes,
    }
    (path / "task.yaml").write_text(yaml.safe_dump({k: v for k, v in settings.items() if v is not None}))
    (path / "docker-compose.yaml").write_text(compose)
    (path / "Dockerfile").write_text("FROM debian:12\nWORKDIR /app\nCOPY data.txt /app/\n")
    (path / "data.txt").write_text("data\n")
    (path / "run-tests.sh").write_text(f"cat <<'END'\n{printed}END\nexit 3\n")
    (path / "solution.sh").write_text("#!/bin/bash\necho hi > hello.txt\n")
    (path / "tests").mkdir()
    (path / "tests" / "test_outputs.py").write_text("def test_file(): ...\n")
    return path


def rewards(task_dir: Path, tmp_path: Path) -> dict[str, float]:
    """What the task's tests/test.sh writes, with its two directories moved below `tmp_path`."""
    logs = tmp_path / "logs"
    script = (task_dir / "tests" / "test.sh").read_text()
    script = script.replace("/logs/verifier", str(logs)).replace(
        "/tests/run-tests", f"{task_dir}/tests/run-tests"
    )
    subprocess.run(["bash", "-c", script], check=True, capture_output=True)
    found: dict[str, float] = json.loads((logs / "reward.json").read_text())
    return found


def test_a_directory_of_old_tasks_is_a_source(tmp_path: Path) -> None:
    make_old_task(tmp_path / "set" / "hello-old")
    (task,) = load_harbor_tasks(tmp_path / "set")
    assert (task.task_name, task.instruction) == ("hello-old", "Make hello.txt\n")
    assert task.config.metadata["difficulty"] == "easy"
    assert (task.config.agent.timeout_sec, task.config.verifier.timeout_sec) == (180, 30)
    assert (task.task_dir / "environment" / "data.txt").read_text() == "data\n"
    assert (task.task_dir / "solution" / "solve.sh").is_file()
    Task(task.task_dir)


def test_old_and_new_tasks_stand_beside_each_other(tmp_path: Path, make_task: Any) -> None:
    make_old_task(tmp_path / "set" / "old")
    make_task(tmp_path / "set" / "new")
    assert [task.task_name for task in load_harbor_tasks(tmp_path / "set")] == ["new", "old"]


def test_what_is_converted_is_kept_until_the_task_changes(tmp_path: Path) -> None:
    source = make_old_task(tmp_path / "set" / "old")
    (first,) = load_harbor_tasks(source)
    stamp = first.task_dir.stat().st_mtime_ns
    (again,) = load_harbor_tasks(source)
    assert (again.task_dir, again.task_dir.stat().st_mtime_ns) == (first.task_dir, stamp)
    (source / "data.txt").write_text("other\n")
    (changed,) = load_harbor_tasks(source)
    assert changed.task_dir != first.task_dir


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            HEADER + ALL_PASS,
            {"reward": 1, "passed": 2, "tests": 2, "test:test_file": 1, "test:test_content": 1},
        ),
        (
            HEADER + ONE_FAILS,
            {"reward": 0, "passed": 1, "tests": 2, "test:test_file": 1, "test:test_content": 0},
        ),
        (ALL_PASS, {"reward": 0, "passed": 0, "tests": 0}),
        ("", {"reward": 0, "passed": 0, "tests": 0}),
        (
            HEADER + "ERROR tests/a.py::test_x[a b]\n",
            {"reward": 0, "passed": 0, "tests": 1, "test:test_x[a_b]": 0},
        ),
        (HEADER + 'PASSED t.py::test_"q"\r\n', {"reward": 1, "passed": 1, "tests": 1, "test:test__q_": 1}),
    ],
)
def test_the_results_of_the_single_tests_become_the_reward(
    tmp_path: Path, printed: str, expected: dict[str, float]
) -> None:
    (task,) = load_harbor_tasks(make_old_task(tmp_path / "old", printed))
    assert rewards(task.task_dir, tmp_path) == expected


def test_a_task_of_several_services_keeps_them(tmp_path: Path) -> None:
    (task,) = load_harbor_tasks(make_old_task(tmp_path / "old", compose=COMPOSE + DATABASE))
    services = yaml.safe_load((task.task_dir / "environment" / "docker-compose.yaml").read_text())["services"]
    assert sorted(services) == ["database", "main"]


def test_the_oldest_spellings_are_understood(tmp_path: Path) -> None:
    descriptions = [{"key": "hard", "description": "no"}, {"key": "base", "description": "Make it"}]
    source = make_old_task(tmp_path / "old", instruction=None, descriptions=descriptions)
    (source / "solution.sh").rename(source / "solution.yaml")
    (task,) = load_harbor_tasks(source)
    assert task.instruction == "Make it\n"
    assert not (task.task_dir / "solution").exists()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: (path / "run-tests.sh").unlink(), "has no run-tests.sh"),
        (lambda path: (path / "docker-compose.yaml").unlink(), "docker-compose.yaml not found"),
        (lambda path: (path / "task.yaml").write_text("a: [\n"), "is not valid YAML"),
        (lambda path: (path / "task.yaml").write_text("- a\n"), "is not a table"),
        (lambda path: (path / "task.yaml").write_text("parser_name: swebench\n"), "read by 'swebench'"),
        (lambda path: (path / "task.yaml").write_text("difficulty: easy\n"), "cannot be converted"),
    ],
)
def test_an_old_task_that_cannot_be_converted_is_named(tmp_path: Path, spoil: Any, words: str) -> None:
    spoil(make_old_task(tmp_path / "set" / "old"))
    make_old_task(tmp_path / "set" / "whole")
    with pytest.raises(ConversionError) as error:
        load_harbor_tasks(tmp_path / "set")
    assert words in str(error.value)
    assert str(tmp_path / "set" / "old") in str(error.value)
    assert "\n" not in str(error.value)
    found = load_dataset(tmp_path / "set", on_bad_task="skip")
    assert ([task.task_name for task in found.tasks], len(found.skipped)) == (["whole"], 1)


def test_a_dataset_of_the_old_registry_is_fetched_by_its_name(
    home: Path, git_repository: Any, tmp_path: Path
) -> None:
    for name in ("one", "two", "three"):
        make_old_task(git_repository.path / "tasks" / name)
    row = {
        "name": "terminal-bench-core",
        "description": "",
        "github_url": git_repository.url,
        "dataset_path": "./tasks",
        "branch": "main",
        "commit_hash": git_repository.commit(),
        "task_id_subset": None,
    }
    rows = [{**row, "version": "0.1.0", "task_id_subset": ["two"]}, {**row, "version": "0.1.1"}]
    path = tmp_path / "registry.json"
    path.write_text(json.dumps(rows))
    names = [task.task_name for task in load_harbor_tasks(f"{path}#terminal-bench-core==0.1.1")]
    assert names == ["one", "three", "two"]
    assert [task.task_name for task in load_harbor_tasks(f"{path}#terminal-bench-core==0.1.0")] == ["two"]
    with pytest.raises(UnknownDatasetError, match=r"did you mean terminal-bench-core==0.1.1\?"):
        load_harbor_tasks(f"{path}#terminal-bench-cor==0.1.1")
