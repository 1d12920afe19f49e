from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from termrl.config import TrainConfig
from termrl.learn.curriculum import Curriculum, PassRate
from termrl.learn.history import read_pass_rates, write_pass_rates
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.tasks import HarborTask


class Named:
    def __init__(self, name: str) -> None:
        self.task_name = name


TASKS = [cast(HarborTask, Named(name)) for name in ("never", "always", "half", "unknown")]
CONFIG = TrainConfig(curriculum="pass_rate", curriculum_floor=0.1)


def results(solved: int, failed: int, lost: int = 0) -> list[Rollout]:
    return [
        Rollout("t", outcome, reward, (), Timings())
        for outcome, reward, count in (
            (Outcome.SOLVED, 1.0, solved),
            (Outcome.FAILED, 0.0, failed),
            (Outcome.SANDBOX_LOST, None, lost),
        )
        for _ in range(count)
    ]


def learned() -> Curriculum:
    curriculum = Curriculum(TASKS, CONFIG)
    for _ in range(10):
        curriculum.learn("never", results(0, 8))
        curriculum.learn("always", results(8, 0))
        curriculum.learn("half", results(4, 4))
    return curriculum


def test_tasks_between_never_and_always_are_favoured_and_the_others_revisited_at_the_floor() -> None:
    curriculum = learned()
    drawn = Counter(curriculum.draw(number).task_name for number in range(4000))
    floor = 4000 * CONFIG.curriculum_floor / len(TASKS)
    assert drawn["half"] > 5 * drawn["never"]
    assert drawn["unknown"] > 3 * drawn["always"]
    assert floor * 0.7 < drawn["never"] < 4000 * 0.12
    assert floor * 0.7 < drawn["always"] < 4000 * 0.12


def test_a_draw_is_a_function_of_the_seed_the_number_and_the_results_before() -> None:
    one, other = learned(), learned()
    assert [one.draw(n).task_name for n in range(50)] == [other.draw(n).task_name for n in range(50)]
    for _ in range(10):
        other.learn("half", results(8, 0))
    assert [one.draw(n).task_name for n in range(50)] != [other.draw(n).task_name for n in range(50)]


def test_a_batch_has_no_task_twice_while_there_are_others() -> None:
    curriculum = learned()
    taken: list[str] = []
    for number in range(4):
        taken.append(curriculum.draw(number, taken).task_name)
    assert sorted(taken) == sorted(task.task_name for task in TASKS)
    assert curriculum.draw(4, taken).task_name in taken


def test_what_infrastructure_lost_says_nothing_of_a_task() -> None:
    assert PassRate().after(results(1, 1, lost=6)) == PassRate().after(results(1, 1))


def test_the_more_attempts_the_surer_the_rate_and_old_ones_fade() -> None:
    few, many = PassRate(1, 2), PassRate(10, 20)
    assert few.mean == many.mean == 0.5
    assert many.deviation < few.deviation
    rate = PassRate()
    for _ in range(20):
        rate = rate.after(results(0, 8))
    for _ in range(10):
        rate = rate.after(results(8, 0))
    assert rate.mean > 0.85


def test_pass_rates_are_kept_across_runs_and_written_again_without_counting_twice(tmp_path: Path) -> None:
    write_pass_rates(tmp_path, "m", "one", {"a": (1, 2)})
    write_pass_rates(tmp_path, "m", "one", {"a": (2, 4)})
    write_pass_rates(tmp_path, "m", "two", {"a": (6, 12), "b": (0, 1)})
    write_pass_rates(tmp_path, "other", "three", {"a": (0, 9)})
    rates = read_pass_rates(tmp_path, "m")
    assert rates["a"].solved / rates["a"].scored == pytest.approx(0.5)
    assert rates["a"].scored == 4
    assert rates["b"] == PassRate(0, 1)
    assert read_pass_rates(tmp_path / "nowhere", "m") == {}


def test_without_a_curriculum_all_tasks_come_alike() -> None:
    curriculum = Curriculum(TASKS, TrainConfig(curriculum="off"))
    drawn = Counter(curriculum.draw(number).task_name for number in range(40))
    assert set(drawn.values()) == {10}
