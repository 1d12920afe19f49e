"""The built-in dataset: its size, its split, and how it comes to be on disk."""

import os
import re
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from termrl.tasks import BUILTIN_DATASETS, HarborTask, Split, load_harbor_tasks, reference_commands
from termrl.tasks.basics import builtin_tasks, task_files
from termrl.tasks.builtin import builtin_directory
from termrl.tasks.errors import UnwritableCacheError
from termrl.tasks.names import CONSONANTS, VOWELS, is_held_out


def split_of(task: HarborTask) -> str:
    return str(task.config.metadata["split"])


def test_the_split_is_fixed_at_900_train_120_held_out_and_24_of_held_out_families() -> None:
    tasks = load_harbor_tasks("termrl/basics")
    assert Counter(map(split_of, tasks)) == {"train": 900, "held_out": 120, "held_out_families": 24}


def test_there_are_at_least_10_families_and_200_tasks() -> None:
    tasks = load_harbor_tasks("termrl/basics")
    assert len(tasks) >= 200
    assert len({task.config.metadata["family"] for task in tasks}) >= 10


@pytest.mark.parametrize("split", list(Split))
def test_a_split_is_addressed_by_its_name(split: Split) -> None:
    whole = {task.task_name for task in load_harbor_tasks("termrl/basics") if split_of(task) == split}
    assert {task.task_name for task in load_harbor_tasks(f"termrl/basics:{split}")} == whole


def test_no_family_is_both_trained_on_and_held_out() -> None:
    def families_of(split: Split) -> set[str]:
        return {str(task.config.metadata["family"]) for task in load_harbor_tasks(f"termrl/basics:{split}")}

    assert families_of(Split.TRAIN) == families_of(Split.HELD_OUT)
    assert not families_of(Split.TRAIN) & families_of(Split.HELD_OUT_FAMILIES)


def test_no_file_of_a_train_task_has_a_held_out_name_nor_the_other_way_round() -> None:
    phrasings = " ".join(task.family.phrasing + task.family.command for task in builtin_tasks())
    shape = re.compile(rf"\b(?:[{CONSONANTS}][{VOWELS}]){{2,3}}[{CONSONANTS}]?\b")
    assert not shape.findall(phrasings), "a word of an instruction has the shape of a name"
    seen: dict[bool, set[str]] = {True: set(), False: set()}
    for task in load_harbor_tasks("termrl/basics"):
        for path in task.task_dir.rglob("*"):
            text = str(path.relative_to(task.task_dir))
            if path.is_file():
                # A newline is two characters in the quoted strings of the tests.
                text += "\n" + path.read_text().replace("\\n", "\n")
            seen[split_of(task) == "train"] |= set(shape.findall(text))
    assert len(seen[True]) > 500
    assert len(seen[False]) > 200
    assert not any(map(is_held_out, seen[True]))
    assert all(map(is_held_out, seen[False]))


def test_no_two_tasks_ask_for_the_same() -> None:
    instructions = [task.instruction for task in load_harbor_tasks("termrl/basics")]
    assert len(set(instructions)) == len(instructions)


def test_the_output_of_the_generator_is_pinned() -> None:
    """A change of the tasks changes what published numbers mean: change this line knowingly."""
    assert builtin_directory("termrl/basics").name == "basics-3445f248f37cd758"


def test_every_task_has_one_reference_command_and_no_network() -> None:
    for task in load_harbor_tasks("termrl/basics"):
        (command,) = reference_commands(task)
        assert len(command) <= 50
        assert task.config.environment.network_mode.value == "no-network"
        assert task.config.agent.timeout_sec == 60
        assert task.config.verifier.timeout_sec == 30


def test_1044_tasks_load_in_under_two_seconds() -> None:
    load_harbor_tasks("termrl/basics")
    began = time.process_time()
    assert len(load_harbor_tasks("termrl/basics")) == 1044
    assert time.process_time() - began < 2


def test_a_second_use_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = builtin_directory("termrl/basics")
    before = root.stat().st_mtime_ns, os.listdir(root.parent)
    assert builtin_directory("termrl/basics:train") == root / "train"
    assert (root.stat().st_mtime_ns, os.listdir(root.parent)) == before


def test_what_is_on_disk_is_what_the_generator_says_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old_mask = os.umask(0o077)
    try:
        root = builtin_directory("termrl/basics")
    finally:
        os.umask(old_mask)
    expected = {
        root / task.split / task.name / path: file
        for task in builtin_tasks()
        for path, file in task_files(task).items()
    }
    found = {
        path: (path.read_text(), stat.S_IMODE(path.stat().st_mode))
        for path in root.rglob("*")
        if path.is_file()
    }
    assert found == expected
    assert {stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*") if path.is_dir()} == {0o755}


def test_processes_that_write_at_the_same_time_all_find_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    count = "from termrl.tasks import load_harbor_tasks; print(len(load_harbor_tasks('termrl/basics')))"
    writers = [
        subprocess.Popen([sys.executable, "-c", count], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [writer.communicate()[0] for writer in writers] == ["1044\n"] * 3
    assert len(os.listdir(tmp_path / "termrl" / "tasks")) == 1


def test_a_relative_cache_directory_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert builtin_directory("termrl/basics").is_relative_to(tmp_path / ".cache")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "termrl").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UnwritableCacheError, match="set XDG_CACHE_HOME to a directory"):
        load_harbor_tasks("termrl/basics")


def test_the_names_of_the_built_in_datasets_are_listed() -> None:
    assert BUILTIN_DATASETS == (
        "termrl/basics",
        "termrl/basics:train",
        "termrl/basics:held_out",
        "termrl/basics:held_out_families",
        "termrl/terminal-mini",
    )
