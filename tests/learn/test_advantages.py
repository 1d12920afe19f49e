import pytest

from termrl.learn.advantages import group_advantages, is_constant


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ([1, 1, 0, 0], [0.5, 0.5, -0.5, -0.5]),
        ([-0.1, 0, 1], [-0.4, -0.3, 0.7]),
    ],
)
def test_centring_matches_the_reference_vectors(rewards: list[float], expected: list[float]) -> None:
    assert group_advantages(rewards) == pytest.approx(expected)


def test_division_by_std_matches_the_reference_vector() -> None:
    expected = [1.499997, -0.499999, -0.499999, -0.499999]
    assert group_advantages([1, 0, 0, 0], normalize_by_std=True) == pytest.approx(expected, abs=1e-6)


def test_a_group_of_equal_rewards_has_no_advantage() -> None:
    assert is_constant([1.0, 1.0])
    assert not is_constant([1.0, 0.0])
    assert group_advantages([1, 1, 1], normalize_by_std=True) == [0, 0, 0]
