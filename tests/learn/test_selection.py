from pathlib import Path
from typing import Any

import pytest

from termrl.config import ContradictionError, TrainConfig
from termrl.errors import UserError
from termrl.learn.selection import SelectionError, refuse_overlap, select_tasks, split_tasks
from termrl.tasks import HarborTask, load_harbor_tasks

TASKS = load_harbor_tasks("termrl/basics:train")[:60]
NAMES = [task.task_name for task in TASKS]


def names(tasks: list[HarborTask] | None) -> list[str]:
    return [task.task_name for task in tasks or []]


def test_tasks_are_chosen_by_name_place_and_number() -> None:
    assert names(select_tasks(TASKS, TrainConfig(task_ids=(NAMES[3], NAMES[1])))) == [NAMES[3], NAMES[1]]
    assert names(select_tasks(TASKS, TrainConfig(task_indices="0-2,5"))) == [*NAMES[:3], NAMES[5]]
    some = names(select_tasks(TASKS, TrainConfig(n_tasks=5)))
    assert len(some) == 5
    assert some != NAMES[:5]
    assert some == names(select_tasks(TASKS, TrainConfig(n_tasks=5)))


def test_tasks_are_chosen_by_tag_and_difficulty() -> None:
    family = str(TASKS[0].config.metadata["family"])
    chosen = select_tasks(TASKS, TrainConfig(task_tags=(family,)))
    assert chosen
    assert {task.config.metadata["family"] for task in chosen} == {family}
    difficulty = str(TASKS[0].config.metadata.get("difficulty", "unknown"))
    assert TASKS[0] in select_tasks(TASKS, TrainConfig(task_difficulty=(difficulty,)))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"task_ids": ("nothing",)}, "The dataset has no task 'nothing'"),
        ({"task_indices": "0-60"}, "asks for task 60, and the dataset has 60"),
        ({"task_tags": ("nothing",)}, "No task is left by task_tags=nothing; the tasks have"),
        ({"task_difficulty": ("nothing",)}, "No task is left by task_difficulty=nothing"),
    ],
)
def test_a_filter_that_leaves_nothing_is_refused_with_what_there_is(
    settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        select_tasks(TASKS, TrainConfig(**settings))


def test_a_share_is_held_out_by_the_seed_and_not_by_the_alphabet() -> None:
    config = TrainConfig(eval_fraction=0.2)
    training, held_out = split_tasks(TASKS, config)
    assert len(names(held_out)) == 12
    assert not set(names(held_out)) & set(names(training))
    assert len(training) == 48
    alphabet = sorted(NAMES)
    assert set(names(held_out)) not in (set(alphabet[:12]), set(alphabet[-12:]))
    assert names(split_tasks(TASKS[::-1], config)[1]) == names(held_out)
    assert set(names(split_tasks(TASKS, TrainConfig(eval_fraction=0.2, seed=1))[1])) != set(names(held_out))


def test_a_task_more_moves_no_other_to_the_other_side_but_at_the_border() -> None:
    before = set(names(split_tasks(TASKS[:-1], TrainConfig(eval_fraction=0.2))[1]))
    after = set(names(split_tasks(TASKS, TrainConfig(eval_fraction=0.2))[1]))
    assert len(before ^ after) <= 2


def test_a_file_says_what_is_held_out(tmp_path: Path) -> None:
    file = tmp_path / "held-out.txt"
    file.write_text(f"{NAMES[4]}\n# a remark\n\n{NAMES[2]}  # another\n")
    training, held_out = split_tasks(TASKS, TrainConfig(eval_tasks_file=str(file)))
    assert names(held_out) == [NAMES[4], NAMES[2]]
    assert len(training) == 58
    file.write_text("nothing\n")
    with pytest.raises(UserError, match="no task 'nothing'"):
        split_tasks(TASKS, TrainConfig(eval_tasks_file=str(file)))


def test_a_task_on_both_sides_is_refused() -> None:
    with pytest.raises(SelectionError, match="1 tasks are both trained on and held out"):
        refuse_overlap(TASKS[:3], TASKS[2:4])
    refuse_overlap(TASKS[:2], TASKS[2:4])


def test_two_ways_to_hold_out_are_refused() -> None:
    with pytest.raises(ContradictionError, match="eval_fraction and eval_tasks_file"):
        TrainConfig(eval_fraction=0.5, eval_tasks_file="x")
