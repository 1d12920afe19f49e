"""What `termrl train run_name=NAME` does when the run is there already."""

from pathlib import Path

import pytest

from termrl.cli.train import _resolve
from termrl.learn.resume import RunExistsError
from termrl.settings import from_dict, to_dict
from termrl.store import Run


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """A run of that name with settings of its own."""
    settings = to_dict(from_dict({"seed": 3, "max_steps": 5}))
    Run.create(tmp_path / "mine", kind="train", settings=settings).close()
    return [f"run_root={tmp_path}", "run_name=mine"]


def test_it_goes_on_with_its_own_settings_by_default(arguments: list[str]) -> None:
    config = _resolve([*arguments, "max_steps=9"])
    assert (config.run_name, config.seed, config.max_steps) == ("mine", 3, 9)


def test_a_new_one_takes_the_next_free_name(arguments: list[str], tmp_path: Path) -> None:
    assert _resolve([*arguments, "behavior_if_run_exists=new", "seed=4"]).run_name == "mine-2"
    (tmp_path / "mine-2").mkdir()
    config = _resolve([*arguments, "behavior_if_run_exists=new", "seed=4"])
    assert (config.run_name, config.seed) == ("mine-3", 4)


def test_it_is_refused_where_that_was_asked_for(arguments: list[str]) -> None:
    with pytest.raises(RunExistsError, match=r"is there already: give another run_name") as refusal:
        _resolve([*arguments, "behavior_if_run_exists=error"])
    assert refusal.value.exit_code == 2


def test_with_nobody_to_ask_that_is_said(arguments: list[str]) -> None:
    with pytest.raises(RunExistsError, match="no terminal to ask at"):
        _resolve([*arguments, "behavior_if_run_exists=ask"])


@pytest.mark.parametrize(("answer", "name"), [("r", "mine"), ("New", "mine-2")])
def test_the_person_at_the_terminal_decides(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, answer: str, name: str
) -> None:
    answers = iter(["what?", answer])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: next(answers))
    assert _resolve([*arguments, "behavior_if_run_exists=ask"]).run_name == name


def test_a_person_may_also_quit(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "q")
    with pytest.raises(RunExistsError):
        _resolve([*arguments, "behavior_if_run_exists=ask"])
