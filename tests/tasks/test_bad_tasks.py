"""Tasks that cannot be used among many that can: named, and either a stop or left out and counted."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from termrl.tasks import load_dataset, load_harbor_tasks
from termrl.tasks.errors import (
    DuplicateTaskError,
    InvalidTaskError,
    MissingEnvironmentError,
    MissingInstructionError,
    MissingTestsError,
    NoTasksError,
    OutwardLinkError,
    OversizedFileError,
    TaskError,
)


def no_tests(path: Path) -> None:
    (path / "tests" / "test.sh").unlink()


def no_dockerfile(path: Path) -> None:
    (path / "environment" / "Dockerfile").rename(path / "environment" / "Containerfile")


def link_out(path: Path) -> None:
    (path / "environment" / "passwd").symlink_to("/etc/passwd")


def link_up(path: Path) -> None:
    (path / "tests" / "up").symlink_to("../..")


def huge_file(path: Path) -> None:
    with (path / "environment" / "model.bin").open("wb") as file:
        os.truncate(file.fileno(), 10**9)  # Sparse: it takes no room on the disk.


def not_text(path: Path) -> None:
    (path / "instruction.md").write_bytes(b"Gr\xfc\xdfe")


BAD: dict[str, tuple[Callable[[Path], None], type[TaskError], str]] = {
    "no tests": (no_tests, MissingTestsError, "has no tests/test.sh, so nothing can grade it"),
    "no dockerfile": (no_dockerfile, MissingEnvironmentError, "does not say what its sandbox starts from"),
    "link out": (link_out, OutwardLinkError, "the link environment/passwd leads out of it, to /etc/passwd"),
    "link up": (link_up, OutwardLinkError, "the link tests/up leads out of it"),
    "huge file": (huge_file, OversizedFileError, "has a file of 1.0 GB, environment/model.bin"),
    "not text": (not_text, InvalidTaskError, "instruction.md is not UTF-8 text"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_with_a_task_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, make_task: Any, what: str
) -> None:
    spoil, kind, words = BAD[what]
    task_dir = make_task(tmp_path / "hello")
    spoil(task_dir)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(kind) as error:
        load_harbor_tasks(tmp_path)
    message = str(error.value)
    assert words in message
    assert str(task_dir) in message
    assert "\n" not in message
    assert error.value.exit_code == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_bad_tasks_among_good_ones_are_left_out_and_counted(tmp_path: Path, make_task: Any) -> None:
    for number, (spoil, _, _) in enumerate(BAD.values()):
        spoil(make_task(tmp_path / f"bad-{number}"))
    for name in ("one", "two"):
        make_task(tmp_path / name)
    found = load_dataset(tmp_path, on_bad_task="skip")
    assert [task.task_name for task in found.tasks] == ["one", "two"]
    assert [bad.path.name for bad in found.skipped] == [f"bad-{number}" for number in range(len(BAD))]
    for bad, (_, _, words) in zip(found.skipped, BAD.values(), strict=True):
        assert words in bad.reason


def test_of_two_tasks_of_one_name_the_second_is_left_out(tmp_path: Path, make_task: Any) -> None:
    first, second = make_task(tmp_path / "a" / "hello"), make_task(tmp_path / "b" / "hello")
    with pytest.raises(DuplicateTaskError):
        load_harbor_tasks(tmp_path)
    found = load_dataset(tmp_path, on_bad_task="skip")
    assert [task.task_dir for task in found.tasks] == [first]
    assert [bad.path for bad in found.skipped] == [second]


def test_a_dataset_of_nothing_but_bad_tasks_is_refused(tmp_path: Path, make_task: Any) -> None:
    no_tests(make_task(tmp_path / "hello"))
    with pytest.raises(
        NoTasksError, match=r"None of the 1 tasks of .* can be used; the first: .*tests/test.sh"
    ):
        load_harbor_tasks(tmp_path, on_bad_task="skip")


def test_links_that_stay_within_a_task_are_fine(tmp_path: Path, make_task: Any) -> None:
    task_dir = make_task(tmp_path / "hello")
    (task_dir / "tests" / "again.sh").symlink_to("test.sh")
    assert len(load_harbor_tasks(tmp_path)) == 1


def test_a_directory_where_a_file_should_be_is_refused(tmp_path: Path, make_task: Any) -> None:
    task_dir = make_task(tmp_path / "hello")
    (task_dir / "instruction.md").unlink()
    (task_dir / "instruction.md").mkdir()
    with pytest.raises(MissingInstructionError, match=r"has no instruction\.md"):
        load_harbor_tasks(tmp_path)
