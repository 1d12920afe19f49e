import numpy as np
import pytest

from termrl.config import ContradictionError, TrainConfig
from termrl.learn.datums import rollout_lessons
from termrl.learn.reference import discounted_sums, penalized
from termrl.policy.transcript import Turn

(LESSON,) = rollout_lessons([Turn((1, 2), (3, 4, 5), (-1.0, -2.0, -3.0), 0, "stop")], 0.5)


def test_discounted_sums_match_the_reference_vector() -> None:
    assert discounted_sums(np.asarray([1, 2, 3]), 0.5).tolist() == [2.75, 3.5, 3]
    assert discounted_sums(np.asarray([1, 2, 3]), 0.0).tolist() == [1, 2, 3]


def test_a_token_is_penalized_for_its_distance_beyond_the_mean() -> None:
    reference = np.asarray([0.0, -2.0, -2.0, -2.0])
    (lesson,), mean = penalized([LESSON], [reference], coef=0.1, discount=0.0)
    assert mean == pytest.approx((1 + 0 - 1) / 3)
    assert lesson.advantages_T.tolist() == pytest.approx([0, 0.4, 0.5, 0.6])
    assert lesson.logprobs_T.tolist() == LESSON.logprobs_T.tolist()


def test_with_a_discount_a_token_bears_what_comes_after_it() -> None:
    reference = np.asarray([0.0, -1.0, -2.0, -6.0])
    (lesson,), mean = penalized([LESSON], [reference], coef=1.0, discount=0.5)
    assert mean == pytest.approx(1)
    assert lesson.advantages_T.tolist() == pytest.approx([0, 1.5, 0.5, -1.5])


def test_settings_of_a_penalty_that_is_off_are_refused() -> None:
    with pytest.raises(ContradictionError, match="kl_penalty_coef is 0"):
        TrainConfig(kl_discount_factor=0.9)
