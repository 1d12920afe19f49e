"""Splits: what is trained on, what is held out, and the lists that say so."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from termrl.tasks import load_harbor_tasks
from termrl.tasks.errors import SplitError
from termrl.tasks.splitting import By, split_names, write_split


@pytest.mark.parametrize("by", ["task", "category", "difficulty"])
def test_the_sides_have_nothing_in_common_and_together_are_the_whole(by: By) -> None:
    tasks = load_harbor_tasks("termrl/basics")
    train, held = split_names(tasks, 0.2, 0, by)
    assert sorted(train + held) == sorted(task.task_name for task in tasks)
    assert len(held) == round(0.2 * len(tasks))


def test_a_split_is_the_same_whatever_the_order_and_another_with_another_seed() -> None:
    tasks = load_harbor_tasks("termrl/basics")
    train, held = split_names(tasks, 0.2, 0, "task")
    assert set(split_names(tasks[::-1], 0.2, 0, "task")[1]) == set(held)
    assert set(split_names(tasks, 0.2, 1, "task")[1]) != set(held)
    assert train != sorted(train) or held != sorted(held)[: len(held)]


@pytest.mark.parametrize("by", ["category", "difficulty"])
def test_every_category_or_difficulty_is_split_in_the_same_proportion(by: By) -> None:
    tasks = load_harbor_tasks("termrl/basics")
    whole = Counter(str(task.config.metadata[by]) for task in tasks)
    names = set(split_names(tasks, 0.25, 3, by)[1])
    held = Counter(str(task.config.metadata[by]) for task in tasks if task.task_name in names)
    for key, count in whole.items():
        assert abs(held[key] - 0.25 * count) <= 1


def test_the_lists_are_sources_of_the_same_tasks(tmp_path: Path, make_task: Any) -> None:
    for number in range(10):
        make_task(tmp_path / "mine" / f"t{number}")
    tasks = load_harbor_tasks(tmp_path / "mine")
    lists = write_split(tasks, str(tmp_path / "mine"), tmp_path / "lists", 0.3, 0, "task")
    assert lists.train_path.name == "mine-train.txt"
    assert tuple(task.task_name for task in load_harbor_tasks(lists.train_path)) == lists.train
    assert tuple(task.task_name for task in load_harbor_tasks(lists.holdout_path)) == lists.holdout
    assert len(lists.holdout) == 3


@pytest.mark.parametrize("holdout", [0.0, 1.0, -1.0, 0.01, 0.99, float("nan")])
def test_a_split_that_leaves_a_side_empty_writes_nothing(
    tmp_path: Path, make_task: Any, holdout: float
) -> None:
    make_task(tmp_path / "mine" / "one")
    make_task(tmp_path / "mine" / "two")
    tasks = load_harbor_tasks(tmp_path / "mine")
    with pytest.raises(SplitError):
        write_split(tasks, "mine", tmp_path / "lists", holdout, 0, "task")
    assert not (tmp_path / "lists").exists()
