import numpy as np
import pytest

from termrl.config import TrainConfig
from termrl.learn.batch import make_batch
from termrl.learn.datums import rollout_lessons
from termrl.learn.numbers import batch_numbers, policy_numbers, quantiles, rollout_numbers
from termrl.policy.transcript import Turn
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings


def rollout(reward: float | None, *versions: int, task: str = "a") -> Rollout:
    outcome = Outcome.SANDBOX_LOST if reward is None else Outcome.SOLVED if reward == 1 else Outcome.FAILED
    turns = tuple(Turn((1, 2), (3, 4), (-0.5, -0.25), version, "stop") for version in versions or (0,))
    return Rollout(task, outcome, reward, turns, Timings(total=2.0))


GROUPS = [
    [rollout(1), rollout(1)],
    [rollout(1, 2, 3, task="b"), rollout(0, task="b"), rollout(None, task="b")],
]


def test_rates_have_their_denominators_and_are_taken_before_any_filter() -> None:
    numbers = rollout_numbers(GROUPS, version=4)
    assert (numbers["groups"], numbers["rollouts"], numbers["scored"], numbers["excluded"]) == (2, 5, 4, 1)
    assert numbers["outcomes"] == {"failed": 1, "sandbox_lost": 1, "solved": 3}
    assert numbers["solve_rate"] == numbers["reward"] == 0.75
    assert numbers["tasks"] == {
        "a": {"n": 2, "scored": 2, "solved": 2, "reward": 1.0},
        "b": {"n": 3, "scored": 2, "solved": 1, "reward": 0.5},
    }
    assert numbers["sandbox_seconds"] == 10
    assert numbers["turns"]["max"] == 2


def test_how_far_rollouts_lag_is_told_turn_by_turn() -> None:
    numbers = rollout_numbers(GROUPS, version=4)
    assert numbers["staleness_max"] == 4
    assert numbers["staleness_mean"] == pytest.approx((4 * 4 + 2 + 1) / 6)


def test_what_was_left_out_is_counted() -> None:
    numbers = batch_numbers([make_batch(GROUPS, TrainConfig(), step=0)])
    assert (numbers["groups_constant"], numbers["groups_too_small"], numbers["rollouts_trained"]) == (1, 0, 2)
    assert (numbers["advantage_min"], numbers["advantage_max"]) == (-0.5, 0.5)
    assert numbers["train_tokens"] == 9


def test_nothing_at_all_has_no_means() -> None:
    assert rollout_numbers([[rollout(None)]], version=0)["reward"] is None
    assert batch_numbers([make_batch([], TrainConfig(), step=0)])["shaped_reward"] is None
    assert quantiles([]) is None
    assert policy_numbers([], []) == {}


def test_the_ratio_is_taken_over_sampled_tokens_only() -> None:
    (lesson,) = rollout_lessons(rollout(1).turns, 1.0)
    found = np.asarray([9.0, -0.5, -0.25 + np.log(2)], np.float32)
    numbers = policy_numbers([lesson], [found])
    assert numbers["tokens_trained_on"] == 2
    assert numbers["ratio_mean"] == pytest.approx(1.5)
    assert numbers["ratio_max"] == pytest.approx(2)
    assert numbers["kl_sampler"] == pytest.approx(-np.log(2) / 2)
    assert numbers["entropy"] == pytest.approx((0.5 + 0.25 - np.log(2)) / 2)
