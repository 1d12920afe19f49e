from typing import Literal

from termrl.config import TrainConfig
from termrl.learn.batch import make_batch
from termrl.policy.transcript import Turn
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings


def rollout(reward: float | None, outcome: Outcome | None = None) -> Rollout:
    outcome = outcome or (Outcome.SOLVED if reward == 1 else Outcome.FAILED)
    return Rollout("task", outcome, reward, (Turn((1, 2), (3, 4), (-0.5, -0.5), 0, "stop"),), Timings())


LOST = rollout(None, Outcome.SANDBOX_LOST)


def test_rates_have_their_denominators_and_are_taken_before_any_filter() -> None:
    groups = [[rollout(1), rollout(1)], [rollout(1), rollout(0), LOST]]
    metrics = make_batch(groups, TrainConfig(), step=0).metrics
    assert metrics["rollouts"] == 5
    assert metrics["scored"] == 4
    assert metrics["excluded"] == 1
    assert metrics["outcomes"] == {"failed": 1, "sandbox_lost": 1, "solved": 3}
    assert metrics["solve_rate"] == 0.75
    assert metrics["groups_constant"] == 1
    assert metrics["rollouts_trained"] == 2


def test_a_lost_rollout_is_never_a_zero_and_never_takes_its_group_down() -> None:
    batch = make_batch([[rollout(1), rollout(0), LOST]], TrainConfig(), step=0)
    advantages = [
        float(datums[0].loss_fn_inputs["advantages"].to_numpy()[-1]) for datums in batch.rollout_datums
    ]
    assert advantages == [0.5, -0.5]


def test_a_batch_without_signal_is_empty_and_not_an_error() -> None:
    batch = make_batch([[rollout(0), rollout(0)], [LOST, LOST], [rollout(1), LOST]], TrainConfig(), step=0)
    assert batch.rollout_datums == []
    assert batch.minibatches(4) == []
    assert batch.metrics["groups_too_small"] == 2


def test_minibatches_are_disjoint_split_by_rollout_and_leave_none_out() -> None:
    batch = make_batch([[rollout(1), rollout(0), rollout(0), rollout(1), rollout(1)]], TrainConfig(), step=0)
    parts = batch.minibatches(3)
    assert [len(part) for part in parts] == [2, 2, 1]
    assert len({id(datum) for part in parts for datum in part}) == 5


def test_shuffled_rewards_stay_within_their_group() -> None:
    config = TrainConfig(shuffle_rewards=True, remove_constant_reward_groups=False)
    groups = [[rollout(1)] * 4, [rollout(1), rollout(0), rollout(0), rollout(0)]]
    batch = make_batch(groups, config, step=0)
    advantages = [
        float(datums[0].loss_fn_inputs["advantages"].to_numpy()[-1]) for datums in batch.rollout_datums
    ]
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
        return [
            float(datums[0].loss_fn_inputs["advantages"].to_numpy().sum()) for datums in batch.rollout_datums
        ]

    assert weights("rollout") == [2.5, -2.5]
    assert weights("token") == [1.0, -4.0]
