"""The loop on the real engine, with rollouts that wait where commands would run."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from small_runs import CountedSteps, config_of, logprobs_after, train
from termrl.errors import Interrupted, LimitReachedError
from termrl.learn.custom_loss import LossGradient
from termrl.learn.datums import Lesson
from termrl.learn.learner import LossRefusedError
from termrl.learn.losses import LOSSES
from termrl.learn.prices import Prices
from termrl.learn.progress import Progress, Silent
from termrl.learn.stop import Stop
from termrl.learn.train import train_run
from termrl.policy.sampler import Sampler
from termrl.rollout.collect import rollout_seed
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.rollout.waiting import WaitingRunner
from termrl.store import Place, Run


def wait_a_little(random: Random) -> float:
    return random.lognormvariate(-4.0, 1.0)


async def test_on_policy_steps_are_sampled_from_the_weights_they_train(
    training_of: Any, tmp_path: Path
) -> None:
    await train(training_of, "sync", config_of())
    with Run.open(tmp_path / "sync") as run:
        assert [run.ledger.batch(step) for step in range(3)] == [[0, 1], [2, 3], [4, 5]]
        for place, rollout in run.rollouts("train").items():
            assert {turn.policy_version for turn in rollout.turns} == {place.step}
        steps = run.steps()
        assert [step["staleness_max"] for step in steps.values()] == [0, 0, 0]
        assert all(abs(step["ratio_mean"] - 1) < 1e-3 for step in steps.values() if step["datums"])
        assert len(run.ledger.credits(0)) == steps[0]["rollouts_trained"]


async def test_the_same_run_again_is_the_same_bit_for_bit_whatever_the_waiting(training_of: Any) -> None:
    first = await train(training_of, "one", config_of())
    other = await train(training_of, "two", config_of(), wait=wait_a_little)
    assert first == other


@pytest.mark.parametrize("partial", [False, True])
async def test_off_policy_groups_are_trained_as_they_come_with_every_turns_version_recorded(
    training_of: Any, tmp_path: Path, partial: bool
) -> None:
    config = config_of(max_steps_off_policy=2, max_steps=5, partial_rollouts=partial)
    await train(training_of, "async", config, wait=wait_a_little)
    with Run.open(tmp_path / "async") as run:
        assert sorted(run.steps()) == list(range(5))
        trained = [number for step in range(5) for number in run.ledger.batch(step)]
        assert len(trained) == len(set(trained)) == 10
        drawn = run.ledger.groups()
        assert max(trained) < len(drawn) <= 10
        assert all(group.number < (group.version + 1 + 2) * 2 for group in drawn.values()), "no back-pressure"
        first = {turn.policy_version for r in run.rollouts("train").values() for turn in r.turns}
        assert len(first) > 1
        assert max(step["staleness_max"] for step in run.steps().values()) >= 1


async def test_an_off_policy_run_replayed_from_its_store_ends_in_the_same_weights(
    training_of: Any, tmp_path: Path
) -> None:
    config = config_of(max_steps_off_policy=1, max_steps=4, num_substeps=2)
    lived = await train(training_of, "run", config, wait=wait_a_little)
    with Run.open(tmp_path / "run", write=True) as run:
        rollouts = len(run.rollouts("train"))
        for checkpoint in run.checkpoints():
            if checkpoint.step:
                run.forget_checkpoint(checkpoint.name)
    assert await train(training_of, "run", config) == lived
    with Run.open(tmp_path / "run") as run:
        assert len(run.rollouts("train")) == rollouts


async def test_a_lost_group_is_sampled_again_and_then_used_with_what_there_is(
    training_of: Any, tmp_path: Path
) -> None:
    seeds = {rollout_seed(0, Place("train", 0, group, m)): (group, m) for group in range(2) for m in range(4)}

    class Losing(WaitingRunner):
        """Loses three of the first group's four once, and one of the second group's for good."""

        def __init__(self) -> None:
            super().__init__(lambda random: 0.0)
            self.calls: Counter[tuple[int, int]] = Counter()

        async def run(self, task: Any, sampler: Sampler, *, seed: int) -> Rollout:
            group, member = seeds[seed]
            self.calls[group, member] += 1
            if member and (self.calls[group, member] == 1 if group == 0 else member == 3):
                return Rollout(task.task_name, Outcome.SANDBOX_LOST, None, (), Timings())
            return await super().run(task, sampler, seed=seed)

    losing = Losing()
    await train(training_of, "losing", config_of(max_steps=1), runner=losing)
    assert [losing.calls[0, member] for member in range(4)] == [1, 2, 2, 2]
    assert [losing.calls[1, member] for member in range(4)] == [1, 1, 1, 1]
    with Run.open(tmp_path / "losing") as run:
        metrics = run.steps()[0]
    assert (metrics["rollouts"], metrics["scored"], metrics["excluded"]) == (8, 7, 1)
    assert metrics["outcomes"]["sandbox_lost"] == 1


async def test_a_step_without_any_signal_is_skipped_said_and_counted(
    training_of: Any, tmp_path: Path
) -> None:
    class Alike(WaitingRunner):
        async def run(self, task: Any, sampler: Sampler, *, seed: int) -> Rollout:
            rollout = await super().run(task, sampler, seed=seed)
            return Rollout(task.task_name, Outcome.FAILED, 0.0, rollout.turns, rollout.timings)

    said: list[str] = []

    class Notes(Silent):
        def note(self, text: str) -> None:
            said.append(text)

    await train(
        training_of, "alike", config_of(max_steps=2), runner=Alike(lambda random: 0.0), progress=Notes()
    )
    with Run.open(tmp_path / "alike") as run:
        steps = run.steps()
    assert [step["groups_constant"] for step in steps.values()] == [2, 2]
    assert all("loss_sum" not in step for step in steps.values())
    assert sum("nothing was trained" in text for text in said) == 2


def own_importance_sampling(logprobs: list[np.ndarray], lessons: list[Lesson]) -> LossGradient:
    ratios = [np.exp(new - lesson.logprobs_T) for new, lesson in zip(logprobs, lessons, strict=True)]
    gradients = [-ratio * lesson.advantages_T for ratio, lesson in zip(ratios, lessons, strict=True)]
    return LossGradient(float(sum(each.sum() for each in gradients)), gradients, {"own_figure": 1.0})


async def test_a_loss_of_ones_own_trains_as_the_servers_loss_of_the_same_formula(
    training_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_loss.py").write_text("loss = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    monkeypatch.setattr(importlib.import_module("own_loss"), "loss", own_importance_sampling)
    config = config_of(max_steps=1, num_substeps=2)
    server = await train(training_of, "server", config)
    own = await train(training_of, "own", config_of(max_steps=1, num_substeps=2, loss_fn="own_loss:loss"))
    assert own == pytest.approx(server, abs=2e-3)
    with Run.open(tmp_path / "own") as run, Run.open(tmp_path / "server") as other:
        assert run.steps()[0]["own_figure"] == 1.0
        assert run.steps()[0]["loss_sum"] == pytest.approx(other.steps()[0]["loss_sum"], rel=1e-3, abs=1e-4)


async def test_a_loss_that_the_server_does_not_have_is_refused_before_anything_is_sampled(
    training_of: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        LossRefusedError, match=r"The server does not train with loss_fn=ppo .*clip_low_threshold"
    ):
        await train(
            training_of,
            "refused",
            config_of(loss_fn="ppo", loss_fn_config={"clip_low_threshold": 3.0, "clip_high_threshold": 1.0}),
        )
    with Run.open(tmp_path / "refused") as run:
        assert run.rollouts("train") == {}


@pytest.mark.parametrize("loss_fn", ["ppo", "cispo", "dro", "gspo", "stable_reinforce"])
async def test_every_loss_trains(training_of: Any, tmp_path: Path, loss_fn: str) -> None:
    settings = {name: 0.9 if "low" in name else 1.3 if "high" in name else 0.02 for name in LOSSES[loss_fn]}
    config = config_of(max_steps=1, num_substeps=2, loss_fn=loss_fn, loss_fn_config=settings)
    await train(training_of, loss_fn, config)
    with Run.open(tmp_path / loss_fn) as run:
        assert run.steps()[0]["updates"] == 2
        assert run.steps()[0]["grad_norm"] > 0


async def test_the_adapter_is_where_the_settings_say(training_of: Any) -> None:
    config = config_of(max_steps=1, train_unembed=False)
    async with training_of("narrow", config) as training:
        await train_run(training)
        rest = training.service.create_rest_client()
        info = await rest.get_weights_info_by_tinker_path(training.run.checkpoints()[-1].state_path)
    assert (info.lora_rank, info.train_attn, info.train_mlp, info.train_unembed) == (4, True, True, False)


async def test_a_penalty_holds_the_policy_near_its_reference(training_of: Any, tmp_path: Path) -> None:
    free = config_of(max_steps=6)
    held = config_of(max_steps=6, kl_penalty_coef=2.0)
    await train(training_of, "free", free)
    await train(training_of, "held", held)
    with Run.open(tmp_path / "free") as run, Run.open(tmp_path / "held") as other:
        assert "kl_reference" not in run.steps()[0]
        distances = [step["kl_reference"] for step in other.steps().values() if "kl_reference" in step]
    assert distances
    assert abs(distances[0]) < 1e-3


async def test_logprobs_at_another_temperature_are_the_servers_where_they_match(
    training_of: Any, tmp_path: Path
) -> None:
    await train(training_of, "warm", config_of(max_steps=1, temperature=0.7))
    with Run.open(tmp_path / "warm") as run:
        assert run.fact("old_logprobs") == "server"
        assert run.steps()[0]["ratio_mean"] == pytest.approx(1, abs=1e-3)


async def test_evaluations_run_beside_training_and_what_a_break_cut_short_goes_on(
    training_of: Any, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int]] = []
    training_steps: list[int] = []

    async def evaluate(name: str, step: int, sampler: Sampler, progress: Progress) -> None:
        seen.append((name, step, sampler.policy_version))
        if name == "during_rl" and not stop.asked and len(seen) == 2:
            await asyncio.Event().wait()

    class StopAfterTwo(Silent):
        def advance(self, n: int = 1, **numbers: float) -> None:
            training_steps.append(n)
            if len(training_steps) == 4:
                stop.ask(Interrupted())

    config = config_of(max_steps=4, eval_every=2, eval_dataset="x", eval_base=True)
    stop = Stop()
    with pytest.raises(Interrupted):
        await train(training_of, "run", config, evaluate=evaluate, stop=stop, progress=StopAfterTwo())
    assert seen == [("base", 0, 0), ("during_rl", 2, 2)]
    await train(training_of, "run", config, evaluate=evaluate)
    assert sorted(seen[2:]) == [("after_rl", 4, 4), ("during_rl", 2, 2)]


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"max_tokens_total": 400}, "max_tokens_total=400 is reached"),
        ({"max_cost": 0.001}, r"max_cost=0.001 is reached \(\$0.00 was spent"),
        ({"max_hours": 1e-9}, "max_hours=1e-09 is reached"),
    ],
)
async def test_a_limit_ends_the_run_cleanly_and_resumably_with_exit_code_3(
    training_of: Any, tmp_path: Path, limit: dict[str, Any], sentence: str
) -> None:
    config = config_of(**limit)
    dear = Prices(prefill=2.0, sample=2.0, train=2.0, sandbox_hour=0.0)
    with pytest.raises(LimitReachedError, match=sentence) as reached:
        await train(training_of, "limited", config, prices=dear)
    assert reached.value.exit_code == 3
    with Run.open(tmp_path / "limited") as run:
        assert len(run.steps()) < 3
        stored = run.rollouts("train")
        assert run.fact("spent")["sampled_tokens"] >= sum(r.sampled_tokens for r in stored.values())
    await train(training_of, "limited", config_of(), prices=dear)
    with Run.open(tmp_path / "limited") as run:
        assert len(run.steps()) == 3
        assert stored.items() <= run.rollouts("train").items()


async def test_an_interrupt_lets_what_is_in_flight_end_and_keeps_the_weights(
    training_of: Any, tmp_path: Path
) -> None:
    stop = Stop()

    class Interrupting(WaitingRunner):
        async def run(self, task: Any, sampler: Sampler, *, seed: int) -> Rollout:
            rollout = await super().run(task, sampler, seed=seed)
            if sampler.policy_version == 1:
                stop.ask(Interrupted())
            return rollout

    config = config_of(n_parallel_envs=3)
    with pytest.raises(Interrupted):
        await train(training_of, "broken", config, runner=Interrupting(lambda random: 0.01), stop=stop)
    with Run.open(tmp_path / "broken") as run:
        assert len(run.steps()) == 1
        assert run.checkpoints()[-1].step == 1
        before = run.rollouts("train", 1)
        assert 1 <= len(before) <= 5
    whole = await train(training_of, "whole", config)
    assert await train(training_of, "broken", config) == whole
    with Run.open(tmp_path / "broken") as run:
        assert before.items() <= run.rollouts("train", 1).items()


async def test_rolling_checkpoints_replace_each_other(training_of: Any, tmp_path: Path) -> None:
    config = config_of(max_steps=5, rolling_save_every=1, save_every=3)
    await train(training_of, "rolling", config)
    with Run.open(tmp_path / "rolling") as run:
        kept = [(checkpoint.kind, checkpoint.step) for checkpoint in run.checkpoints()]
    assert kept == [("periodic", 0), ("periodic", 3), ("rolling", 5)]


async def test_checkpoints_expire_but_for_the_last_and_a_run_goes_on_from_the_newest_that_is_left(
    training_of: Any, tmp_path: Path
) -> None:
    config = config_of(max_steps=4, save_every=1, checkpoint_ttl_hours=1)
    stop, notes = Stop(), list[str]()

    class Noted(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    with pytest.raises(Interrupted):
        await train(
            training_of, "run", config, stop=stop, progress=CountedSteps(2, lambda: stop.ask(Interrupted()))
        )
    async with training_of("run", config, progress=Noted()) as training:
        rest = training.service.create_rest_client()

        async def lifetimes() -> dict[str, bool]:
            kept = training.run.checkpoints()
            listed = await rest.list_checkpoints_async(kept[0].state_path.split("/")[2])
            limited = {each.tinker_path: each.expires_at is not None for each in listed.checkpoints}
            return {each.name: limited[each.state_path] for each in kept if each.state_path in limited}

        before = await lifetimes()
        assert before == {"start": False, "step-00001": True, "step-00002": True, "stopped-00002": True}
        rollouts = training.run.rollouts("train")
        for checkpoint in training.run.checkpoints()[2:]:
            await rest.set_checkpoint_ttl_from_tinker_path_async(checkpoint.state_path, 1)
        await asyncio.sleep(1.5)
        await train_run(training)
        assert [text.partition(" (")[0] for text in notes[:3]] == [
            "Checkpoint stopped-00002 is gone",
            "Checkpoint step-00002 is gone",
            "Going on from checkpoint step-00001.",
        ]
        assert rollouts.items() <= training.run.rollouts("train").items()
        last = training.run.checkpoints()[-1]
        assert (last.name, last.kind) == ("final-00004", "final")
        listed = await rest.list_checkpoints_async(last.state_path.split("/")[2])
        (final,) = [each for each in listed.checkpoints if each.tinker_path == last.state_path]
        assert final.expires_at is None
        broken = await logprobs_after(training)
    assert broken == await train(training_of, "whole", config)


async def test_a_curriculum_goes_on_as_if_it_had_not_been_broken(training_of: Any, tmp_path: Path) -> None:
    config = config_of(curriculum="pass_rate", max_steps=4, save_every=2)
    whole = await train(training_of, "whole", config)
    with Run.open(tmp_path / "whole") as run:
        drawn = run.ledger.groups()
    (tmp_path / "pass-rates.json").unlink()
    stop = Stop()

    class StopInTheMiddle(Silent):
        def advance(self, n: int = 1, **numbers: float) -> None:
            if "reward" in numbers:
                stop.ask(Interrupted())

    with pytest.raises(Interrupted):
        await train(training_of, "broken", config, stop=stop, progress=StopInTheMiddle())
    assert await train(training_of, "broken", config) == whole
    with Run.open(tmp_path / "broken") as run:
        assert run.ledger.groups() == drawn
        assert Place("train", 0, 0, 0) in run.rollouts("train")
