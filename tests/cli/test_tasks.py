"""The `termrl tasks` commands as a user meets them."""

import json
from pathlib import Path

import pytest

from termrl.cli import COMMANDS, main
from termrl.tasks import load_harbor_tasks


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def test_a_list_has_what_each_task_asks_for_and_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "list", "terminal-mini"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "task",
        "difficulty",
        "category",
        "agent",
        "verifier",
        "resources",
        "image",
        "network",
        "size",
    ]
    assert any(line.split()[:3] == ["keep-it-up", "hard", "services"] for line in lines)
    assert lines[-1].startswith("20 tasks in terminal-mini, ")
    assert "17 medium" in lines[-1]


def test_a_list_is_given_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "list", "terminal-mini", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert len(listed["tasks"]) == 20
    assert {"task_name", "image", "network", "size", "agent_timeout_sec"} <= listed["tasks"][0].keys()


def test_a_dataset_and_a_task_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "show", "terminal-mini", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["tasks"], shown["categories"]["git"]) == (20, 4)
    assert main(["tasks", "show", "terminal-mini", "keep-it-up"]) == 0
    assert "Write /app/keep.sh" in capsys.readouterr().out
    assert main(["tasks", "show", "terminal-mini", "keep-it-ap"]) == 2
    assert "did you mean keep-it-up?" in capsys.readouterr().err


def test_a_split_writes_lists_that_training_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "split", "terminal-mini", "holdout=0.25", "by=category", "output_path=lists"]) == 0
    assert "termrl train dataset=lists/terminal-mini-train.txt" in capsys.readouterr().out
    assert len(load_harbor_tasks(tmp_path / "lists" / "terminal-mini-train.txt")) == 15
    assert len(load_harbor_tasks(tmp_path / "lists" / "terminal-mini-holdout.txt")) == 5


def test_the_datasets_on_the_machine_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "datasets"]) == 0
    printed = capsys.readouterr().out
    assert "termrl/basics" in printed
    assert "termrl/terminal-mini" in printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["split", "terminal-mini", "holdout=2"], "between 0 and 1"),
        (["split", "terminal-mini", "holdout=x"], "not a number"),
        (["split", "terminal-mini", "by=size"], "it is one of task, category, difficulty"),
        (["split"], "Say which dataset to split"),
        (["show"], "Say which dataset to show"),
        (["pull"], "Say which dataset to fetch"),
        (["pull", "termrl/basics"], "built in"),
        (["remove", "terminal-mini"], "built in"),
        (["remove", "terminal-bench@2.0"], "was not fetched"),
        (["datasets", "drop"], "pull or remove"),
        (["list", "./nothing-here"], "There is no dataset './nothing-here'"),
        (["list", "termrl/terminal-mimi"], "did you mean termrl/terminal-mini?"),
        (["new"], "Say what the task is called"),
        (["new", "a/b"], "cannot be the name of a task"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("cache", "home")] == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.startswith("tasks ")])
def test_every_command_says_how_it_is_used(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: termrl tasks ")
