"""Training and evaluation leave out what is in quarantine, without a word of the user's."""

import asyncio
from pathlib import Path

import pytest

from termrl import EvalConfig, TrainConfig, train
from termrl.evaluate.evaluation import plan_evaluation
from termrl.tasks.errors import NoTasksError
from termrl.tasks.quarantine import Unfit, quarantine_path, write_quarantine

NAMES = ("one", "three", "two")
FLAKY = Unfit("flaky", "the oracle passes 2 of 3 times")


@pytest.fixture
def mine(tmp_path: Path) -> str:
    for name in NAMES:
        for path, text in {
            "task.toml": "",
            "instruction.md": "Say hello",
            "environment/Dockerfile": "FROM termrl/host\n",
            "tests/test.sh": "true\n",
        }.items():
            (tmp_path / "mine" / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "mine" / name / path).write_text(text)
    return str(tmp_path / "mine")


def chosen(config: EvalConfig) -> list[tuple[int, str]]:
    return [(one.index, one.task.task_name) for one in plan_evaluation(config).chosen]


def test_an_evaluation_leaves_them_out_and_indices_mean_the_same_tasks(mine: str, tmp_path: Path) -> None:
    config = EvalConfig(dataset=mine, run_root=str(tmp_path / "runs"))
    assert chosen(config) == [(0, "one"), (1, "three"), (2, "two")]
    path = quarantine_path(mine, tmp_path / "runs")
    write_quarantine(path, mine, {"three": FLAKY}, NAMES)
    assert chosen(config) == [(0, "one"), (2, "two")]
    everything = EvalConfig(dataset=mine, run_root=str(tmp_path / "runs"), quarantine="none")
    assert chosen(everything) == [(0, "one"), (1, "three"), (2, "two")]


def test_a_broken_task_is_left_out_of_an_evaluation_that_may_skip_it(mine: str, tmp_path: Path) -> None:
    (Path(mine) / "one" / "tests" / "test.sh").unlink()
    config = EvalConfig(dataset=mine, run_root=str(tmp_path / "runs"), on_bad_task="skip")
    assert [name for _, name in chosen(config)] == ["three", "two"]


def test_training_on_nothing_but_quarantined_tasks_is_refused_before_a_run_is_made(
    mine: str, tmp_path: Path
) -> None:
    path = quarantine_path(mine, tmp_path / "runs")
    write_quarantine(path, mine, dict.fromkeys(NAMES, FLAKY), NAMES)
    config = TrainConfig(dataset=mine, run_root=str(tmp_path / "runs"))
    with pytest.raises(NoTasksError, match=r"All 3 tasks are in quarantine by"):
        asyncio.run(train(config))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["quarantine"]
