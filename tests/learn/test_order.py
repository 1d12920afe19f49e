from termrl.config import TrainConfig
from termrl.learn.order import nth_task, planned_steps


def test_every_task_comes_once_before_any_comes_twice() -> None:
    tasks = list(range(12))
    drawn = [nth_task(tasks, seed=1, number=number) for number in range(36)]
    for epoch in range(3):
        assert sorted(drawn[12 * epoch : 12 * (epoch + 1)]) == tasks
    assert drawn[:12] != drawn[12:24]


def test_a_group_has_the_same_task_whenever_it_is_asked_for() -> None:
    def drawn(seed: int) -> list[str]:
        return [nth_task("abcdef", seed=seed, number=number) for number in range(12)]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


def test_steps_end_with_max_steps_or_the_epochs_whichever_is_first() -> None:
    assert planned_steps(TrainConfig(), 10) == 100
    assert planned_steps(TrainConfig(max_steps=7), 10) == 7
    assert planned_steps(TrainConfig(n_epochs=3, batch_size=4), 10) == 8
    assert planned_steps(TrainConfig(n_epochs=3, batch_size=4, max_steps=5), 10) == 5
    assert planned_steps(TrainConfig(max_steps=0), 10) == 0
