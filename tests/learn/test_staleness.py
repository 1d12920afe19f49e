"""Groups that come back after the weights have moved on, under each rule for them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from small_runs import CountedSteps, config_of, train
from termrl.policy.sampler import Sampler
from termrl.rollout.collect import rollout_seed
from termrl.rollout.record import Rollout
from termrl.rollout.waiting import WaitingRunner
from termrl.store import Place, Run


class FirstHeldUp(WaitingRunner):
    """Rollouts that end at once, but for those of the first group."""

    def __init__(self) -> None:
        super().__init__(lambda random: 0.0)
        self.let_go = asyncio.Event()

    async def run(self, task: Any, sampler: Sampler, *, seed: int) -> Rollout:
        rollout = await super().run(task, sampler, seed=seed)
        if seed in {rollout_seed(0, Place("train", 0, 0, member)) for member in range(4)}:
            await self.let_go.wait()
        return rollout


async def test_a_group_that_lags_too_far_is_drawn_anew_where_that_is_the_rule(
    training_of: Any, tmp_path: Path
) -> None:
    config = config_of(max_steps_off_policy=1, stale_rollouts="requeue", max_steps=5)
    runner = FirstHeldUp()
    await train(training_of, "stale", config, runner=runner, progress=CountedSteps(3, runner.let_go.set))
    with Run.open(tmp_path / "stale") as run:
        (again,) = [group for group in run.ledger.groups().values() if group.in_place_of == 0]
        assert again.task_name == run.ledger.groups()[0].task_name
        assert 0 not in run.ledger.batches()
        assert again.version >= 3
        assert len(run.group("train", 0, 0)) == 4, "what was sampled stays in the store"
        assert max(step["staleness_max"] for step in run.steps().values()) <= 1


async def test_a_group_that_lags_too_far_is_trained_on_as_it_is_unless_another_rule_is_chosen(
    training_of: Any, tmp_path: Path
) -> None:
    runner = FirstHeldUp()
    progress = CountedSteps(3, runner.let_go.set)
    config = config_of(max_steps_off_policy=1, max_steps=5)
    await train(training_of, "late", config, runner=runner, progress=progress)
    with Run.open(tmp_path / "late") as run:
        step = run.ledger.batches()[0]
        assert step >= 3
        assert run.steps()[step]["staleness_max"] == step


@pytest.mark.parametrize("lag", [1, 2])
async def test_no_group_lags_further_than_it_may_where_the_learner_waits(
    training_of: Any, tmp_path: Path, lag: int
) -> None:
    runner = FirstHeldUp()
    done_when_let_go: list[int] = []

    def let_go_later() -> None:
        asyncio.get_running_loop().call_later(0.5, let_go)

    def let_go() -> None:
        done_when_let_go.append(progress.done)
        runner.let_go.set()

    progress = CountedSteps(lag, let_go_later)
    config = config_of(max_steps_off_policy=lag, stale_rollouts="wait", max_steps=lag + 3)
    await train(training_of, "waited", config, runner=runner, progress=progress)
    assert done_when_let_go == [lag], "the learner went on without the group that was due"
    with Run.open(tmp_path / "waited") as run:
        assert run.ledger.batches()[0] == lag
        assert sorted(run.ledger.batches()) == list(range(2 * (lag + 3))), "none is drawn anew"
        assert max(step["staleness_max"] for step in run.steps().values()) == lag
