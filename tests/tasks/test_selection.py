"""Which tasks are meant by places, names and numbers."""

import pytest

from termrl.tasks import load_harbor_tasks
from termrl.tasks.selection import TaskSelectionError, choose_tasks, parse_indices


@pytest.mark.parametrize(
    ("text", "places"),
    [("84,64", [84, 64]), ("0,3-5", [0, 3, 4, 5]), (" 1 , 2 ", [1, 2]), ("2,1-3", [2, 1, 3])],
)
def test_places_and_ranges_are_read_in_their_order_each_once(text: str, places: list[int]) -> None:
    assert parse_indices(text, 89) == places


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("89", "task_indices asks for task 89, and the dataset has 89: 0 to 88."),
        ("3-100", "task_indices asks for task 100"),
        ("5-3", "'5-3', a range from high to low"),
        ("-1", "'-1', which is not a place or a range"),
        ("a", "'a', which is not a place"),
        ("1,,2", "'', which is not a place"),
    ],
)
def test_a_place_that_is_not_there_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(TaskSelectionError) as refusal:
        parse_indices(text, 89)
    assert sentence in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_tasks_are_chosen_by_name_and_keep_their_place() -> None:
    tasks = load_harbor_tasks("termrl/basics:held_out")
    names = [tasks[7].task_name, tasks[2].task_name]
    assert [one.index for one in choose_tasks(tasks, names=names)] == [7, 2]
    with pytest.raises(TaskSelectionError, match="did you mean"):
        choose_tasks(tasks, names=[tasks[0].task_name + "x"])


def test_so_many_tasks_are_drawn_by_the_seed_alone() -> None:
    tasks = load_harbor_tasks("termrl/basics:held_out")
    drawn = [one.index for one in choose_tasks(tasks, n_tasks=10, seed=1)]
    assert drawn == sorted(drawn)
    assert len(set(drawn)) == 10
    assert drawn == [one.index for one in choose_tasks(tasks, n_tasks=10, seed=1)]
    assert drawn != [one.index for one in choose_tasks(tasks, n_tasks=10, seed=2)]
    assert drawn != list(range(10))
    assert len(choose_tasks(tasks, n_tasks=10_000)) == len(tasks)
