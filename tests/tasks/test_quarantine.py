"""The quarantine file: what a check found unfit is left out, by name, and said."""

from pathlib import Path
from typing import Any

import pytest

from termrl.tasks.errors import MalformedQuarantineError, NoTasksError
from termrl.tasks.lists import write_list
from termrl.tasks.quarantine import Unfit, quarantine_path, read_quarantine, write_quarantine
from termrl.tasks.usable import usable_tasks

FLAKY = Unfit("flaky", "the oracle passes 2 of 3 times")


@pytest.fixture
def mine(tmp_path: Path, make_task: Any) -> str:
    for name in ("one", "two", "three"):
        make_task(tmp_path / "mine" / name)
    return str(tmp_path / "mine")


def names(source: str, run_root: Path, **settings: Any) -> tuple[list[str], list[str]]:
    notes: list[str] = []
    tasks = usable_tasks(source, run_root=run_root, note=notes.append, **settings)
    return [task.task_name for task in tasks], notes


def test_what_is_in_quarantine_is_left_out_and_said(mine: str, tmp_path: Path) -> None:
    path = quarantine_path(mine, tmp_path)
    write_quarantine(path, mine, {"two": FLAKY}, ["one", "two", "three"])
    left, notes = names(mine, tmp_path)
    assert left == ["one", "three"]
    assert notes == [f"{mine}: 1 of 3 tasks are in quarantine by {path}: two (flaky)"]


def test_without_a_check_or_with_quarantine_none_everything_is_used(mine: str, tmp_path: Path) -> None:
    assert names(mine, tmp_path) == (["one", "three", "two"], [])
    write_quarantine(quarantine_path(mine, tmp_path), mine, {"two": FLAKY}, ["two"])
    assert names(mine, tmp_path, quarantine="none") == (["one", "three", "two"], [])


def test_a_quarantine_file_can_be_named(mine: str, tmp_path: Path) -> None:
    write_quarantine(tmp_path / "own.json", mine, {"one": FLAKY}, ["one"])
    assert names(mine, tmp_path, quarantine=str(tmp_path / "own.json"))[0] == ["three", "two"]


def test_a_list_of_tasks_is_under_the_quarantine_of_its_dataset(mine: str, tmp_path: Path) -> None:
    write_quarantine(quarantine_path(mine, tmp_path), mine, {"two": FLAKY}, ["two"])
    write_list(tmp_path / "some.txt", mine, ["one", "two"], "some")
    assert names(str(tmp_path / "some.txt"), tmp_path)[0] == ["one"]


def test_a_part_of_a_built_in_dataset_is_under_the_quarantine_of_the_whole(tmp_path: Path) -> None:
    whole = quarantine_path("termrl/basics", tmp_path)
    assert quarantine_path("termrl/basics:train", tmp_path) == whole
    assert quarantine_path("terminal-mini", tmp_path) == quarantine_path("termrl/terminal-mini", tmp_path)


def test_a_dataset_has_one_file_however_its_path_is_typed(
    mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        quarantine_path("mine", tmp_path)
        == quarantine_path("./mine/", tmp_path)
        == quarantine_path(mine, tmp_path)
    )


def test_a_new_check_replaces_what_it_looked_at_and_leaves_the_rest(mine: str, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    write_quarantine(path, mine, {"one": FLAKY, "two": FLAKY}, ["one", "two"])
    write_quarantine(path, mine, {"three": FLAKY}, ["two", "three"])
    assert sorted(read_quarantine(path)) == ["one", "three"]


def test_a_quarantine_of_everything_is_refused(mine: str, tmp_path: Path) -> None:
    all_of_them = dict.fromkeys(("one", "two", "three"), FLAKY)
    write_quarantine(quarantine_path(mine, tmp_path), mine, all_of_them, all_of_them)
    with pytest.raises(NoTasksError, match=r"All 3 tasks are in quarantine by .*quarantine=none"):
        names(mine, tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"tasks": {"one": 3}}', '{"tasks": ["one"]}'])
def test_a_file_that_is_no_quarantine_is_refused(mine: str, tmp_path: Path, text: str) -> None:
    (tmp_path / "q.json").write_text(text)
    with pytest.raises(MalformedQuarantineError, match="is not a quarantine file"):
        names(mine, tmp_path, quarantine=str(tmp_path / "q.json"))


def test_broken_tasks_that_are_skipped_are_counted(mine: str, tmp_path: Path) -> None:
    (Path(mine) / "two" / "task.toml").write_text("[")
    left, notes = names(mine, tmp_path, on_bad_task="skip")
    assert left == ["one", "three"]
    assert notes[0] == f"{mine}: 1 broken tasks are left out"
    assert "two/task.toml is not valid TOML" in notes[1]
