import importlib.util

import pytest

from termrl.config import WandbConfig
from termrl.observe.wandb import WandbError, flat_numbers, require_wandb, wants_wandb


def test_wandb_is_off_unless_enabled_or_a_project_is_named() -> None:
    assert not wants_wandb(WandbConfig())
    assert wants_wandb(WandbConfig(enabled=True))
    assert wants_wandb(WandbConfig(project="p"))
    assert not wants_wandb(WandbConfig(run_name="r"))
    require_wandb(WandbConfig())


def test_what_wandb_lacks_is_said_before_the_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WandbError, match=r"pip install 'termrl\[wandb\]'"):
        require_wandb(WandbConfig(enabled=True))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", "/nowhere")
    with pytest.raises(WandbError, match="WANDB_API_KEY"):
        require_wandb(WandbConfig(project="p"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    require_wandb(WandbConfig(project="p"))


def test_nested_figures_are_named_by_dots_and_the_table_by_task_stays_away() -> None:
    metrics = {
        "reward": 0.5,
        "turns": {"p50": 2.0},
        "tasks": {"a": {"n": 1}},
        "cost": None,
        "outcomes": {"solved": 3},
    }
    assert flat_numbers(metrics) == {"reward": 0.5, "turns.p50": 2.0, "outcomes.solved": 3}
