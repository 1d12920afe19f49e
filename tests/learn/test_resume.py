import pytest

from termrl.config import TrainConfig
from termrl.errors import UserError
from termrl.learn.resume import settle
from termrl.settings import from_dict, to_dict

STORED = to_dict(from_dict({"seed": 3, "max_steps": 5, "warmup.families": ["a", "b"]}))


def test_a_run_named_again_goes_on_with_its_own_settings() -> None:
    assert settle(STORED, {"run_name": "x"}) == from_dict({**STORED, "run_name": "x"})
    assert settle(STORED, {}).warmup.families == ("a", "b")


def test_it_may_be_told_to_go_on_for_longer() -> None:
    assert settle(STORED, {"max_steps": 50}).max_steps == 50


def test_settings_that_would_change_its_past_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="started with seed=3, not 4"):
        settle(STORED, {"seed": 4})


def test_saying_the_same_again_is_no_change() -> None:
    same: TrainConfig = settle(STORED, {"seed": 3, "warmup.families": ("a", "b")})
    assert same.seed == 3
