"""Terminal-Bench 1 tasks in Docker: converted, graded by real pytest, checked. Part of `make test-all`."""

import json
import shutil
from pathlib import Path

import pytest

from termrl.cli import main

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900), pytest.mark.usefixtures("host_image")]

FILES = {
    "task.yaml": (
        "instruction: Write hello into /app/hello.txt\ndifficulty: easy\ncategory: file-operations\n"
        "parser_name: pytest\nmax_agent_timeout_sec: 60\nmax_test_timeout_sec: 60\n"
    ),
    "docker-compose.yaml": (
        "services:\n  client:\n    build:\n      dockerfile: Dockerfile\n"
        "    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}\n"
        "    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}\n"
        '    command: [ "sh", "-c", "sleep infinity" ]\n'
        "    environment:\n      - TEST_DIR=${T_BENCH_TEST_DIR}\n"
    ),
    "Dockerfile": "FROM termrl/host\nWORKDIR /app\n",
    "run-tests.sh": (
        "export PYTHONPATH=$TEST_DIR/packages PYTHONDONTWRITEBYTECODE=1\n"
        "python3 -m pytest $TEST_DIR/test_outputs.py -rA -p no:cacheprovider\n"
    ),
    "tests/test_outputs.py": (
        "from pathlib import Path\n\nFILE = Path('/app/hello.txt')\n\n"
        "def test_is_there():\n    assert FILE.exists()\n\n"
        "def test_says_hello():\n    assert FILE.read_text().strip() == 'hello'\n"
    ),
}
PYTEST = ("pytest", "_pytest", "pluggy", "pluggy-*", "iniconfig", "packaging", "pygments", "py.py")


def write_old_task(path: Path, solution: str) -> None:
    """A task as Terminal-Bench 1 has them, with pytest beside its tests where others would fetch it."""
    for name, text in {**FILES, "solution.sh": f"#!/bin/bash\n{solution}\n"}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    packages = path / "tests" / "packages"
    installed = Path(pytest.__file__).parents[1]
    for source in (each for pattern in PYTEST for each in installed.glob(pattern)):
        if source.is_dir():
            shutil.copytree(source, packages / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, packages)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_old_task(tmp_path / "set" / "whole", "echo hello > /app/hello.txt")
    write_old_task(tmp_path / "set" / "half", "touch /app/hello.txt")
    return tmp_path / "set"


def test_the_results_of_the_single_tests_are_the_reward_of_a_rollout(dataset: Path, tmp_path: Path) -> None:
    command = ["eval", f"dataset={dataset}", "agent=oracle", "environment_type=docker"]
    reward = "reward=0.5*test:test_is_there+0.5*test:test_says_hello"
    assert main([*command, reward, f"run_root={tmp_path}", f"output_path={tmp_path / 'out'}"]) == 0
    rollouts = [json.loads(path.read_text()) for path in (tmp_path / "out" / "rollouts").iterdir()]
    assert {each["task"]: each["reward"] for each in rollouts} == {"whole": 1.0, "half": 0.5}, rollouts


def test_a_check_in_docker_tells_a_sound_task_from_a_broken_one(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tasks", "check", str(dataset), "environment_type=docker", "attempts=1", "--json"]
    assert main([*command, f"run_root={tmp_path / 'runs'}"]) == 1
    report = json.loads(capsys.readouterr().out)
    found = {each["task_name"]: each for each in report["tasks"]}
    assert {name: each["fitness"] for name, each in found.items()} == {"whole": "sound", "half": "broken"}, (
        found
    )
    assert "half" in Path(report["quarantine"]).read_text()
