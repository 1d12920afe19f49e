import numpy as np
import pytest

from termrl.evaluate.intervals import solve_rate


def test_the_interval_covers_the_true_rate_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("termrl.evaluate.intervals.RESAMPLES", 1000)
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        table = {str(task): [bool(rng.random() < 0.4)] for task in range(80)}
        rate = solve_rate(table, seed=trial)
        assert rate.low is not None
        assert rate.high is not None
        covered += rate.low <= 0.4 <= rate.high
    assert 0.89 <= covered / 200 <= 0.99


def test_tasks_are_resampled_not_attempts() -> None:
    once = solve_rate({str(task): [task % 2 == 0] for task in range(20)})
    often = solve_rate({str(task): [task % 2 == 0] * 50 for task in range(20)})
    assert often.n == 1000
    assert (often.low, often.high) == (once.low, once.high)


def test_a_perfect_score_still_has_an_interval() -> None:
    rate = solve_rate({str(task): [True] for task in range(20)})
    assert rate.solve_rate == rate.high == 1.0
    assert rate.low is not None
    assert 0.8 < rate.low < 0.9


def test_no_rollouts_give_no_rate() -> None:
    rate = solve_rate({})
    assert rate.solve_rate is None
    assert rate.n == 0
