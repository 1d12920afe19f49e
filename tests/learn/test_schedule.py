import pytest

from termrl.config import ContradictionError, TrainConfig
from termrl.learn.schedule import adam_at, learning_rate_share


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("cosine", 0, [1, 0.853553, 0.5, 0.146447]),
        ("constant", 1, [0.5, 1, 1, 1]),
        ("linear", 2, [1 / 3, 2 / 3, 1, 0.5]),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule: str, warmup: int, expected: list[float]) -> None:
    shares = [learning_rate_share(step, 4, schedule, warmup) for step in range(4)]
    assert shares == pytest.approx(expected, abs=1e-6)


def test_adam_is_told_every_setting() -> None:
    config = TrainConfig(
        learning_rate=2e-3,
        lr_schedule="linear",
        adam_beta1=0.8,
        adam_beta2=0.99,
        adam_eps=1e-6,
        weight_decay=0.1,
        grad_clip_norm=1.5,
    )
    adam = adam_at(5, 10, config)
    assert adam.learning_rate == pytest.approx(1e-3)
    assert (adam.beta1, adam.beta2, adam.eps) == (0.8, 0.99, 1e-6)
    assert (adam.weight_decay, adam.grad_clip_norm) == (0.1, 1.5)


@pytest.mark.parametrize("setting", ["lr_warmup_steps", "weight_decay", "grad_clip_norm", "adam_eps"])
def test_a_negative_setting_of_the_optimizer_is_refused(setting: str) -> None:
    with pytest.raises(ContradictionError, match=f"{setting} is -1: it must be 0 or more"):
        TrainConfig(**{setting: -1})  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["adam_beta1", "adam_beta2"])
def test_a_beta_of_one_or_more_is_refused(setting: str) -> None:
    with pytest.raises(ContradictionError, match=f"{setting} is 1.0: it must be from 0 to below 1"):
        TrainConfig(**{setting: 1.0})  # type: ignore[arg-type]
