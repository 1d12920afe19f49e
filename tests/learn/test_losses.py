import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from termrl.config import TrainConfig
from termrl.learn.custom_loss import LossGradient, check_gradient, differentiated
from termrl.learn.datums import Lesson, rollout_lessons
from termrl.learn.losses import LOSSES, LossSettingError, check_loss
from termrl.policy.transcript import Turn

LESSONS = rollout_lessons(
    [Turn((1, 2), (3, 4), (-1.0, -2.0), 0, "stop"), Turn((7,), (8,), (-0.5,), 0, "stop")], 2.0
)


def test_every_loss_that_advantages_weigh_in_the_sdk_is_known() -> None:
    from typing import get_args

    from tinker.types import LossFnType

    assert set(LOSSES) == set(get_args(LossFnType)) - {"cross_entropy", "custom"}


def test_the_embedded_engine_has_every_loss_with_the_settings_named_here() -> None:
    from termrl.engine import losses

    ours = {name: set(loss.settings) for name, loss in losses.LOSSES.items() if name != "cross_entropy"}
    assert {name: set(settings) for name, settings in LOSSES.items()} == ours


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_takes_its_settings(name: str) -> None:
    check_loss(TrainConfig(loss_fn=name, loss_fn_config=dict.fromkeys(LOSSES[name], 0.5)))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"loss_fn": "mse"}, "loss_fn is 'mse', which is not importance_sampling, ppo"),
        ({"loss_fn": "dro", "loss_fn_config": {"clip_low_threshold": 0.5}}, "ppo and cispo and gspo"),
        ({"loss_fn": "ppo", "loss_fn_config": {"dual_clip": 3.0}}, "loss_fn_config.dual_clip .no loss of"),
        ({"loss_fn_config": {"truncation": 2.0}}, "does not take loss_fn_config.truncation"),
        ({"loss_fn": "no_such_module:loss"}, "No module named 'no_such_module'"),
        ({"loss_fn": "math:no_such_name"}, "has no attribute"),
        ({"loss_fn": "math:pi"}, "no function"),
    ],
)
def test_a_loss_or_setting_that_would_not_be_honoured_is_refused_by_name(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(LossSettingError, match=sentence) as refusal:
        check_loss(TrainConfig(**settings))  # type: ignore[arg-type]
    assert refusal.value.exit_code == 2


def test_a_loss_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_loss.py").write_text("def loss(logprobs, lessons): ...\n")
    monkeypatch.chdir(tmp_path)
    check_loss(TrainConfig(loss_fn="my_own_loss:loss"))


def test_the_gradient_of_a_loss_in_jax_is_the_one_written_by_hand() -> None:
    @differentiated
    def in_jax(logprobs: list[jnp.ndarray], lessons: list[Lesson]) -> jnp.ndarray:
        pairs = zip(logprobs, lessons, strict=True)
        each = [(jnp.exp(new - lesson.logprobs_T) * lesson.advantages_T).sum() for new, lesson in pairs]
        return -jnp.stack(each).sum()

    new = [lesson.logprobs_T + np.float32(0.1) for lesson in LESSONS]
    result = in_jax(new, LESSONS)
    by_hand = [-np.exp(0.1) * lesson.advantages_T for lesson in LESSONS]
    assert result.loss == pytest.approx(-3 * 2 * np.exp(0.1), rel=1e-5)
    for found, expected in zip(result.gradients, by_hand, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    check_gradient(result, LESSONS)


def test_a_gradient_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="positions"):
        check_gradient(LossGradient(0.0, [np.zeros(2)]), LESSONS)
    with pytest.raises(ValueError, match="not finite"):
        check_gradient(LossGradient(0.0, [np.full(lesson.length, np.nan) for lesson in LESSONS]), LESSONS)


def examples() -> list[str]:
    page = Path(__file__).parents[2] / "docs" / "losses.md"
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("example", examples())
def test_the_examples_in_the_docs_are_losses(example: str) -> None:
    module: dict[str, Any] = {}
    exec(example, module)
    result = module["loss"]([lesson.logprobs_T for lesson in LESSONS], LESSONS)
    check_gradient(result, LESSONS)
    assert len(examples()) == 2
    assert any(np.abs(gradient).max() > 0.5 for gradient in result.gradients)
