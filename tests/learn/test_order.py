from termrl.learn.order import step_tasks


def test_every_task_comes_once_before_any_comes_twice() -> None:
    tasks = list(range(12))
    drawn = [task for step in range(9) for task in step_tasks(tasks, seed=1, step=step, batch_size=4)]
    for epoch in range(3):
        assert sorted(drawn[12 * epoch : 12 * (epoch + 1)]) == tasks
    assert drawn[:12] != drawn[12:24]


def test_a_step_has_the_same_tasks_whenever_it_is_asked_for() -> None:
    assert step_tasks("abcdef", seed=3, step=7, batch_size=4) == step_tasks(
        "abcdef", seed=3, step=7, batch_size=4
    )
    assert any(
        step_tasks("abcdef", seed=3, step=step, batch_size=4)
        != step_tasks("abcdef", seed=4, step=step, batch_size=4)
        for step in range(3)
    )
