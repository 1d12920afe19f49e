"""Where tasks can be loaded from, and what one reads off them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from termrl.tasks import HarborTask, load_harbor_tasks
from termrl.tasks.errors import (
    MalformedListError,
    MalformedTaskConfigError,
    NoTasksError,
    UnknownDatasetError,
)
from termrl.tasks.lists import write_list
from termrl.tasks.overview import overview

OLD = """\
version = "1.0"
[metadata]
difficulty = "hard"
category = "security"
[verifier]
timeout_sec = 900.0
[agent]
timeout_sec = 1200.0
[environment]
build_timeout_sec = 300.0
docker_image = "someone/image:20251031"
cpus = 2
memory = "4G"
storage = "10240M"
allow_internet = false
"""


def test_harbors_cache_with_its_hash_directories_is_the_default_source(home: Path, make_task: Any) -> None:
    cache = home / ".cache" / "harbor" / "tasks"
    make_task(cache / "6rTq2bGzUvXn" / "hello")
    make_task(cache / "packages" / "someone" / "bye" / ("ab" * 32), config='[task]\nname = "someone/bye"\n')
    assert [task.task_name for task in load_harbor_tasks()] == ["hello", "someone/bye"]


def test_a_directory_of_harbors_cache_is_known_by_its_name(home: Path, make_task: Any) -> None:
    make_task(home / ".cache" / "harbor" / "tasks" / "terminal-bench-2" / "hello")
    assert [task.task_name for task in load_harbor_tasks("terminal-bench-2")] == ["hello"]


def test_an_empty_cache_says_so(home: Path) -> None:
    (home / ".cache" / "harbor" / "tasks").mkdir(parents=True)
    with pytest.raises(NoTasksError, match="There is no task in"):
        load_harbor_tasks()


def test_a_list_file_names_task_directories_or_tasks_of_a_dataset(tmp_path: Path, make_task: Any) -> None:
    make_task(tmp_path / "mine" / "hello")
    (tmp_path / "list.txt").write_text(
        "# mine first\nmine/hello\n\ndataset: terminal-mini\nlost-commit\nkeep-it-up\n"
    )
    names = [task.task_name for task in load_harbor_tasks(tmp_path / "list.txt")]
    assert names == ["hello", "lost-commit", "keep-it-up"]


def test_a_list_file_that_is_written_is_read_again(tmp_path: Path) -> None:
    write_list(tmp_path / "few.txt", "terminal-mini", ["keep-it-up", "stale-locks"], "two")
    names = [task.task_name for task in load_harbor_tasks(str(tmp_path / "few.txt"))]
    assert names == ["keep-it-up", "stale-locks"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "dataset: terminal-mini\nkeep-it-upp\n",
            "line 2: terminal-mini has no task keep-it-upp (did you mean",
        ),
        ("nowhere/at-all\n", "line 1: there is no task directory"),
    ],
)
def test_a_list_that_names_what_is_not_there_is_refused_with_its_line(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(UnknownDatasetError) as error:
        load_harbor_tasks(tmp_path / "list.txt")
    assert words in str(error.value)


@pytest.mark.parametrize("content", [b"# nothing\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_list_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list.txt").write_bytes(content)
    with pytest.raises(MalformedListError):
        load_harbor_tasks(tmp_path / "list.txt")


def test_old_spellings_of_task_toml_are_read_as_what_they_mean(tmp_path: Path, make_task: Any) -> None:
    (task,) = load_harbor_tasks(make_task(tmp_path / "hello", config=OLD))
    environment = task.config.environment
    assert (environment.memory_mb, environment.storage_mb, environment.cpus) == (4096, 10240, 2)
    seen = overview(task)
    assert (seen.network, seen.image, seen.memory_mb) == ("no-network", "someone/image:20251031", 4096)
    assert (seen.difficulty, seen.agent_timeout_sec, seen.verifier_timeout_sec) == ("hard", 1200, 900)


def test_the_configuration_is_also_the_plain_table_it_was_written_as(tmp_path: Path, make_task: Any) -> None:
    (task,) = load_harbor_tasks(make_task(tmp_path / "hello", config=OLD))
    assert task.config["environment"]["memory"] == "4G"
    assert task.config.get("verifier", {}).get("timeout_sec") == 900
    assert task.config.get("nothing") is None
    assert "agent" in task.config


def test_a_task_can_be_made_by_hand_with_a_plain_table() -> None:
    task = HarborTask("hello", "Say hello", Path("hello"), {"agent": {"timeout_sec": 5}})  # type: ignore[arg-type]
    assert task.config.agent.timeout_sec == 5
    assert HarborTask("hello", "Say hello", Path("hello")).config.environment.build_timeout_sec == 600


def test_a_task_that_brings_only_an_image_works_as_it_is(tmp_path: Path, make_task: Any) -> None:
    task_dir = make_task(tmp_path / "hello", config='[environment]\ndocker_image = "debian:12"\n')
    (task_dir / "environment" / "Dockerfile").unlink()
    (task_dir / "environment").rmdir()
    (task,) = load_harbor_tasks(tmp_path)
    assert overview(task).image == "debian:12"


LOAD = """
import re, sys, time
from termrl.tasks import load_dataset
began = time.process_time()
found = load_dataset(sys.argv[1], on_bad_task="skip")
seconds = time.process_time() - began
# Not ru_maxrss: that counts what the process was before it became this program.
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
print(len(found.tasks), len(found.skipped), seconds, peak)
"""


@pytest.mark.timeout(600)
def test_3500_tasks_load_in_3_seconds_and_200_mb_and_the_broken_one_is_named(
    tmp_path: Path, make_task: Any
) -> None:
    for number in range(3500):
        make_task(tmp_path / f"{number % 60:02}" / f"task-{number:04}", config=OLD)
    (tmp_path / "07" / "task-0007" / "task.toml").write_text("[agent\n")
    # Of the processor's time, and the best of a few: what others do to its caches is not the loader's doing.
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", LOAD, str(tmp_path)], check=True, capture_output=True, text=True
        )
        count, skipped, seconds, peak = map(float, done.stdout.split())
        assert (count, skipped) == (3499, 1)
        assert peak < 200
        if seconds < 3:
            break
    assert seconds < 3
    with pytest.raises(MalformedTaskConfigError, match=r"07/task-0007/task.toml is not valid TOML"):
        load_harbor_tasks(tmp_path / "07")
