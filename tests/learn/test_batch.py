from typing import Literal

import pytest

from termrl.config import ShapingConfig, TrainConfig
from termrl.learn.batch import make_batch
from termrl.policy.transcript import Turn
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings


def rollout(reward: float | None, outcome: Outcome | None = None) -> Rollout:
    outcome = outcome or (Outcome.SOLVED if reward == 1 else Outcome.FAILED)
    return Rollout("task", outcome, reward, (Turn((1, 2), (3, 4), (-0.5, -0.5), 0, "stop"),), Timings())


LOST = rollout(None, Outcome.SANDBOX_LOST)


def test_a_lost_rollout_is_never_a_zero_and_never_takes_its_group_down() -> None:
    batch = make_batch([[rollout(1), rollout(0), LOST]], TrainConfig(), step=0)
    advantages = [float(lessons[0].advantages_T[-1]) for lessons in batch.rollout_lessons]
    assert advantages == [0.5, -0.5]


def test_a_batch_without_signal_is_empty_and_not_an_error() -> None:
    batch = make_batch([[rollout(0), rollout(0)], [LOST, LOST], [rollout(1), LOST]], TrainConfig(), step=0)
    assert batch.rollout_lessons == []
    assert batch.minibatches(4) == []
    assert batch.too_small == 2
    assert batch.constant == 1


def test_minibatches_are_disjoint_split_by_rollout_and_leave_none_out() -> None:
    batch = make_batch([[rollout(1), rollout(0), rollout(0), rollout(1), rollout(1)]], TrainConfig(), step=0)
    parts = batch.minibatches(3)
    assert [len(part) for part in parts] == [2, 2, 1]
    assert len({id(lesson) for part in parts for lesson in part}) == 5


def test_shuffled_rewards_stay_within_their_group() -> None:
    config = TrainConfig(shuffle_rewards=True, remove_constant_reward_groups=False)
    groups = [[rollout(1)] * 4, [rollout(1), rollout(0), rollout(0), rollout(0)]]
    batch = make_batch(groups, config, step=0)
    advantages = [float(lessons[0].advantages_T[-1]) for lessons in batch.rollout_lessons]
    assert advantages[:4] == [0, 0, 0, 0]
    assert sorted(advantages[4:]) == [-0.25, -0.25, -0.25, 0.75]


def test_every_rollout_weighs_the_same_however_long_it_is() -> None:
    def of_length(reward: float, count: int) -> Rollout:
        turn = Turn((1,), (2,) * count, (-0.5,) * count, 0, "stop")
        outcome = Outcome.SOLVED if reward else Outcome.FAILED
        return Rollout("task", outcome, reward, (turn,), Timings())

    def weights(normalization: Literal["rollout", "token"]) -> list[float]:
        config = TrainConfig(loss_normalization=normalization)
        batch = make_batch([[of_length(1, 2), of_length(0, 8)]], config, step=0)
        return [float(lessons[0].advantages_T.sum()) for lessons in batch.rollout_lessons]

    assert weights("rollout") == [2.5, -2.5]
    assert weights("token") == [1.0, -4.0]


def test_a_batch_of_one_group_can_be_shared_among_several_updates() -> None:
    config = TrainConfig(batch_size=1, group_size=4, num_substeps=4)
    batch = make_batch([[rollout(1), rollout(0), rollout(0), rollout(1)]], config, step=0)
    assert [len(part) for part in batch.minibatches(config.num_substeps)] == [1, 1, 1, 1]


def test_shaping_is_kept_apart_from_the_reward_and_credits_have_both_sides() -> None:
    config = TrainConfig(
        shaping=ShapingConfig(
            turn_cost=0.1, token_cost=0.01, format_penalty=0.5, context_exhausted_penalty=0.3
        )
    )
    group = [rollout(1), rollout(0, Outcome.UNPARSABLE), rollout(0, Outcome.CONTEXT_EXHAUSTED), LOST]
    batch = make_batch([group], config, step=0)
    assert [credit.shaped_reward for credit in batch.credits] == pytest.approx([0.88, -0.62, -0.42])
    assert [credit.member for credit in batch.credits] == [0, 1, 2]
    assert sum(credit.advantage for credit in batch.credits) == pytest.approx(0)
    assert [each.reward for each in group] == [1, 0, 0, None]


def test_shaping_gives_a_signal_where_rewards_are_alike() -> None:
    long = Rollout("task", Outcome.FAILED, 0.0, rollout(0).turns * 3, Timings())
    assert make_batch([[rollout(0), long]], TrainConfig(), step=0).rollout_lessons == []
    shaped = TrainConfig(shaping=ShapingConfig(turn_cost=0.1))
    assert len(make_batch([[rollout(0), long]], shaped, step=0).credits) == 2


def test_reinforce_learns_from_groups_of_one_and_of_equal_rewards() -> None:
    config = TrainConfig(advantage="reinforce", group_size=1)
    batch = make_batch([[rollout(1)], [rollout(0)]], config, step=3, baseline=0.25)
    assert [credit.advantage for credit in batch.credits] == [0.75, -0.25]
