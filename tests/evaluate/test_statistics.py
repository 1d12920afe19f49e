"""pass@k, intervals, tests and power against scipy's and statsmodels' implementations, on random tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from termrl.evaluate.compare import compare, mcnemar_p, permutation_p
from termrl.evaluate.intervals import mean_over_tasks
from termrl.evaluate.passes import accuracy, pass_at_k, pass_at_ks
from termrl.evaluate.power import Variation, chance_to_see, needed_attempts

tables = st.lists(st.lists(st.booleans(), max_size=8), max_size=30)


def named(table: list[list[bool]]) -> dict[str, list[bool]]:
    return {f"task-{index}": attempts for index, attempts in enumerate(table)}


@settings(deadline=None)
@given(n=st.integers(1, 60), data=st.data())
def test_pass_at_k_is_the_chance_of_drawing_at_least_one_pass(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    none_drawn = stats.hypergeom.pmf(0, n, c, k)
    assert pass_at_k(n, c, k) == pytest.approx(1 - none_drawn, abs=1e-9)


def test_pass_at_k_of_fewer_attempts_is_not_defined_and_says_so() -> None:
    assert pass_at_k(1, 1, 2) is None
    passes = pass_at_ks({"a": [True], "b": [True, False]}, [2])[2]
    assert passes.undefined == 1
    assert passes.estimate.tasks == 1
    assert passes.estimate.value == 1.0
    assert pass_at_ks({"a": [True]}, [2])[2].estimate.value is None


@settings(deadline=None, max_examples=30)
@given(tables)
def test_pass_at_ks_agree_with_a_hypergeometric_mean_over_tasks(table: list[list[bool]]) -> None:
    most = max(map(len, table), default=1) or 1
    for k, passes in pass_at_ks(named(table), range(1, most + 1)).items():
        expected = [1 - stats.hypergeom.pmf(0, len(row), sum(row), k) for row in table if len(row) >= k]
        assert passes.undefined == len(table) - len(expected)
        assert passes.estimate.tasks == len(expected)
        if expected:
            assert passes.estimate.value == pytest.approx(np.mean(expected), abs=1e-9)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=3, max_size=60))
def test_bootstrap_intervals_agree_with_scipys(values: list[float]) -> None:
    ours = mean_over_tasks(values, n=len(values))
    assert ours.low is not None
    assert ours.high is not None
    if len(set(values)) == 1 and values[0] in (0.0, 1.0):
        low, high = proportion_confint(sum(values), len(values), method="beta")
        assert (ours.low, ours.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))
        return
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=9_999, rng=np.random.default_rng(1)
    ).confidence_interval
    # Means of so few distinct values lie on a lattice; two sets of draws may end on neighbouring points.
    step = (max(values) - min(values)) / len(values) + 1e-9
    assert abs(ours.low - theirs.low) <= step
    assert abs(ours.high - theirs.high) <= step


def test_accuracy_is_per_rollout_and_its_tasks_are_resampled() -> None:
    uneven = {"a": [True] * 8, "b": [False] * 2}
    estimate = accuracy(uneven)
    assert estimate.value == 0.8
    assert (estimate.n, estimate.tasks) == (10, 2)
    assert (estimate.low, estimate.high) == (0.0, 1.0)


@settings(deadline=None)
@given(gains=st.integers(0, 80), losses=st.integers(0, 80))
def test_mcnemar_agrees_with_statsmodels(gains: int, losses: int) -> None:
    expected = mcnemar([[10, losses], [gains, 10]], exact=True).pvalue
    assert mcnemar_p(gains, losses) == pytest.approx(expected, abs=1e-9)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=30))
def test_the_permutation_test_agrees_with_scipys(differences: list[float]) -> None:
    def statistic(sample: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(np.mean(sample, axis=axis))

    theirs = stats.permutation_test(
        (np.array(differences),),
        statistic,
        permutation_type="samples",
        alternative="two-sided",
        n_resamples=20_000,
        vectorized=True,
        rng=np.random.default_rng(2),
    ).pvalue
    assert permutation_p(np.array(differences)) == pytest.approx(theirs, abs=0.02)


def test_one_attempt_a_task_is_mcnemars_and_more_are_permuted() -> None:
    once = compare({"a": [True], "b": [False]}, {"a": [True], "b": [True]})
    assert once.test.startswith("McNemar")
    assert [flip.task for flip in once.gained] == ["b"]
    often = compare({"a": [True, False]}, {"a": [True, True], "c": [True]})
    assert often.test.startswith("permutation")
    assert often.unpaired == 1
    assert often.tasks == 1


def test_the_interval_of_a_difference_covers_it_about_as_often_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("termrl.evaluate.compare.PERMUTATIONS", 100)
    monkeypatch.setattr("termrl.evaluate.intervals.RESAMPLES", 1000)
    random = np.random.default_rng(0)
    covered, trials = 0, 150
    for trial in range(trials):
        rates = random.beta(1, 2, size=60)
        first = {str(i): list(random.random(2) < rate) for i, rate in enumerate(rates)}
        second = {str(i): list(random.random(2) < min(1, rate + 0.1)) for i, rate in enumerate(rates)}
        truth = float(np.mean(np.minimum(1, rates + 0.1) - rates))
        result = compare(first, second, seed=trial)
        covered += result.low <= truth <= result.high
    assert 0.88 <= covered / trials <= 0.99


def test_no_difference_at_all_is_still_not_certain() -> None:
    same = compare({str(i): [True] for i in range(20)}, {str(i): [True] for i in range(20)})
    assert same.difference == 0.0
    assert same.p_value == 1.0
    assert same.low < 0 < same.high


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_the_attempts_that_power_asks_for_see_the_difference_as_often_as_it_says(spread: float) -> None:
    """Simulated: tasks of differing difficulty, all within reach, a second model better by ten points."""
    random = np.random.default_rng(3)
    tasks, difference = 120, 0.1
    rates = random.uniform(0.2, 0.6, size=tasks)
    within = float(np.mean(rates * (1 - rates)))
    variation = Variation(float(rates.mean()), within, tasks)
    needed = needed_attempts(variation, difference, spread=spread, alpha=0.05, power=0.8).attempts
    assert needed is not None
    assert needed > 1
    seen = 0
    trials = 200
    for _ in range(trials):
        better = np.clip(rates + random.normal(difference, spread, size=tasks), 0, 1)
        before = random.binomial(needed, rates) / needed
        after = random.binomial(needed, better) / needed
        seen += stats.ttest_rel(after, before).pvalue < 0.05
    assert 0.7 <= seen / trials <= 0.92
    assert chance_to_see(variation, difference, needed, spread=spread, alpha=0.05) >= 0.8
    assert chance_to_see(variation, difference, needed - 1, spread=spread, alpha=0.05) < 0.8


def test_where_no_number_of_attempts_is_enough_more_tasks_are_named() -> None:
    variation = Variation.assumed(0.3, 10)
    answer = needed_attempts(variation, 0.05, spread=0.2, alpha=0.05, power=0.8)
    assert answer.attempts is None
    assert answer.tasks_needed > 10
    assert answer.visible > 0.05


def test_variation_is_measured_where_tasks_were_attempted_more_than_once() -> None:
    measured = Variation.measured({"a": [True, False], "b": [True, True]})
    assert measured.rate == 0.75
    assert measured.within == pytest.approx((2 * 0.25 + 0) / 2)
    assert Variation.measured({"a": [True], "b": [False]}) == Variation.assumed(0.5, 2)
