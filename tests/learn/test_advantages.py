import pytest

from termrl.config import ContradictionError, TrainConfig
from termrl.learn.advantages import is_constant, make_advantage, running_baseline


@pytest.mark.parametrize(
    ("settings", "rewards", "expected"),
    [
        ({}, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ({}, [1, 1, 0, 0], [0.5, 0.5, -0.5, -0.5]),
        ({}, [-0.1, 0, 1], [-0.4, -0.3, 0.7]),
        ({"advantage": "grpo"}, [1, 0, 0, 0], [1.499997, -0.499999, -0.499999, -0.499999]),
        ({"normalize_advantages_by_std": True}, [1, 0, 0, 0], [1.499997, -0.499999, -0.499999, -0.499999]),
        ({"advantage": "rloo"}, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        ({"advantage": "rloo"}, [1, 1, 0, 0], [2 / 3, 2 / 3, -2 / 3, -2 / 3]),
        ({"advantage": "rloo"}, [3, 1], [2, -2]),
        ({"advantage": "rloo_std"}, [3, 1, 0], [3.535529, -0.235702, -1.414213]),
        (
            {"advantage": "rloo", "normalize_advantages_by_std": True},
            [1, 0, 0, 0],
            [2, -0.57735, -0.57735, -0.57735],
        ),
        ({"advantage": "entropic"}, [1, 0], [6.3891, -0.8647]),
        ({"advantage": "entropic"}, [1, 1, 0, 0], [1.361, 1.361, -0.8099, -0.8099]),
        ({"advantage": "max_reward"}, [0.2, 0.9, 0.5], [0, 0.4, 0]),
        ({"advantage": "max_reward"}, [1, 1, 0], [0, 0, 0]),
    ],
)
def test_advantages_match_the_reference_vectors(
    settings: dict[str, object], rewards: list[float], expected: list[float]
) -> None:
    advantage = make_advantage(TrainConfig(**settings))  # type: ignore[arg-type]
    assert advantage(rewards) == pytest.approx(expected, abs=1e-4)


def test_the_entropic_advantages_of_a_group_do_not_sum_to_zero() -> None:
    advantages = make_advantage(TrainConfig(advantage="entropic"))([1, 0, 0, 0])
    assert sum(advantages) == pytest.approx(4.35, abs=0.005)


def test_entropic_advantages_are_finite_where_rewards_lie_far_apart() -> None:
    advantages = make_advantage(TrainConfig(advantage="entropic", entropic_beta=50))([100.0, 0.0])
    assert all(abs(advantage) < 1e13 for advantage in advantages)


def test_plain_reinforce_compares_with_a_baseline_that_runs_along_the_steps() -> None:
    config = TrainConfig(advantage="reinforce", baseline_decay=0.5)
    assert make_advantage(config, None)([1, 0]) == [0.5, -0.5]
    after = running_baseline(None, [1, 0], 0.5)
    assert after == 0.5
    assert make_advantage(config, after)([1, 1]) == [0.5, 0.5]
    assert running_baseline(after, [1, 1], 0.5) == 0.75
    assert running_baseline(after, [], 0.5) == 0.5


@pytest.mark.parametrize("name", ["centred", "grpo", "rloo", "rloo_std", "entropic", "max_reward"])
def test_a_group_of_equal_rewards_has_no_advantage(name: str) -> None:
    assert is_constant([1.0, 1.0])
    assert not is_constant([1.0, 0.0])
    assert make_advantage(TrainConfig(advantage=name))([1, 1, 1]) == pytest.approx([0, 0, 0])  # type: ignore[arg-type]


def test_deviation_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(ContradictionError, match="normalize_advantages_by_std has no meaning"):
        TrainConfig(advantage="entropic", normalize_advantages_by_std=True)
