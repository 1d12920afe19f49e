"""Every fault at every phase: its outcome, how often it is tried again, and that nothing else suffers."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from termrl.config import TrainConfig
from termrl.learn.batch import make_batch
from termrl.learn.numbers import rollout_numbers
from termrl.policy.sampler import ModelUnavailableError, SampledAnswer
from termrl.rollout.outcome import Outcome
from termrl.rollout.pool import RolloutPool
from termrl.sandbox.errors import SandboxLost
from termrl.sandbox.local import LocalEnvironment

Bench = Any
Say = Callable[..., str]

RETRIES = 1
BAD = "bad"


class FaultyEnvironment(LocalEnvironment):
    """A sandbox that breaks at one operation, for tasks whose name says so."""

    fault: ClassVar[tuple[str, str]] = ("", "")
    """The operation, and something in its argument, at which it breaks."""
    kind: ClassVar[type[BaseException]] = SandboxLost
    starts: ClassVar[list[str]] = []

    def _break_at(self, operation: str, argument: str = "") -> None:
        wanted, part = self.fault
        if BAD in self.environment_name and operation == wanted and part in argument:
            raise self.kind(f"the machine went away at {operation}")

    async def _wait_at(self, operation: str, argument: str = "") -> None:
        self._break_at(operation, argument)

    async def start(self, force_build: bool) -> None:
        self.starts.append(self.environment_name)
        await self._wait_at("start")
        await super().start(force_build)

    async def exec(self, command: str, *args: Any, **kwargs: Any) -> Any:
        await self._wait_at("exec", command)
        return await super().exec(command, *args, **kwargs)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._wait_at("upload", str(target_dir))
        await super().upload_dir(source_dir, target_dir)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._wait_at("download", str(source_dir))
        await super().download_dir(source_dir, target_dir)

    async def prepare_verification(self) -> list[str]:
        await self._wait_at("prepare")
        return await super().prepare_verification()


class FailingSampler:
    """A model service that answers some calls and then no more."""

    policy_version = 0

    def __init__(self, script: Any, good_calls: int) -> None:
        self._script = script
        self._good_calls = good_calls

    def for_attempt(self) -> "FailingSampler":
        return FailingSampler(self._script.for_attempt(), self._good_calls)

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        if self._good_calls == 0:
            raise ModelUnavailableError("the service is down")
        self._good_calls -= 1
        answer: SampledAnswer = await self._script.sample(prompt, max_tokens, seed)
        return answer


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    FaultyEnvironment.starts.clear()
    FaultyEnvironment.fault = ("", "")
    FaultyEnvironment.kind = SandboxLost


def bad_task(bench: Bench) -> Any:
    toml = (bench.task.task_dir / "task.toml").read_text()
    return bench.write_task(BAD, {"task.toml": toml.replace("test/hello", f"test/{BAD}")})


def faulty_pool(bench: Bench) -> RolloutPool:
    # Kept trials are graded by Harbor's own verifier, which brings its directory back in a trip of its own.
    runner = bench.runner(environment=f"{__name__}:FaultyEnvironment", keep_trials="all")
    return RolloutPool(runner, concurrency=4, retries=RETRIES, backoff_seconds=0.01)


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        (("start", ""), Outcome.BUILD_FAILED),
        (("exec", "new-session"), Outcome.SANDBOX_LOST),
        (("exec", "send-keys"), Outcome.SANDBOX_LOST),
        (("prepare", ""), Outcome.SANDBOX_LOST),
        (("upload", "/tests"), Outcome.SANDBOX_LOST),
        (("exec", "test.sh"), Outcome.SANDBOX_LOST),
        (("download", "/logs/verifier"), Outcome.SANDBOX_LOST),
    ],
    ids=["boot", "agent set-up", "agent", "before the tests", "tests' upload", "tests", "reward's download"],
)
async def test_a_sandbox_that_is_lost_is_tried_again_and_then_excluded_alone(
    bench: Bench, say_hello: list[str], fault: tuple[str, str], outcome: Outcome
) -> None:
    FaultyEnvironment.fault = fault
    bad, good = bad_task(bench), bench.write_task("good")
    pool = faulty_pool(bench)
    rollouts = await asyncio.gather(
        *(pool.run(task, bench.script(say_hello), seed=0) for task in (good, bad, good))
    )
    assert [rollout.outcome for rollout in rollouts] == [Outcome.SOLVED, outcome, Outcome.SOLVED]
    lost = rollouts[1]
    assert (lost.reward, lost.tags["attempts"]) == (None, str(1 + RETRIES))
    assert "the machine went away" in lost.detail
    assert len(FaultyEnvironment.starts) == 2 + 1 + RETRIES
    numbers = rollout_numbers([rollouts], version=0)
    assert (numbers["rollouts"], numbers["scored"], numbers["excluded"]) == (3, 2, 1)
    assert numbers["outcomes"] == {outcome.value: 1, "solved": 2}
    config = TrainConfig(group_size=3, batch_size=1, remove_constant_reward_groups=False)
    batch = make_batch([rollouts], config, step=0)
    assert len(batch.credits) == 2
    assert batch.too_small == 0


PHASES = [("start", ""), ("exec", "new-session"), ("exec", "send-keys"), ("prepare", ""), ("exec", "test.sh")]
PHASE_NAMES = ["boot", "agent set-up", "agent", "before the tests", "tests"]


@pytest.mark.parametrize("fault", PHASES, ids=PHASE_NAMES)
async def test_what_was_cancelled_though_the_run_was_not_stopped_is_tried_again_and_then_excluded_alone(
    bench: Bench, say_hello: list[str], fault: tuple[str, str]
) -> None:
    FaultyEnvironment.fault, FaultyEnvironment.kind = fault, asyncio.CancelledError
    pool = faulty_pool(bench)
    good, bad = await asyncio.gather(
        *(pool.run(task, bench.script(say_hello), seed=0) for task in (bench.task, bad_task(bench)))
    )
    assert good.outcome is Outcome.SOLVED
    assert (bad.outcome, bad.reward, bad.tags["attempts"]) == (Outcome.CANCELLED, None, str(1 + RETRIES))
    assert len(FaultyEnvironment.starts) == 1 + 1 + RETRIES
    numbers = rollout_numbers([[good, bad]], version=0)
    assert (numbers["scored"], numbers["excluded"]) == (1, 1)
    assert numbers["outcomes"] == {"cancelled": 1, "solved": 1}


@pytest.mark.parametrize("fault", PHASES, ids=PHASE_NAMES)
async def test_a_run_that_is_stopped_stops_its_rollouts_in_any_phase_and_leaves_no_sandbox(
    bench: Bench, say_hello: list[str], fault: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    FaultyEnvironment.fault = fault
    reached, made = asyncio.Event(), []
    usual = FaultyEnvironment._break_at

    async def hang(self: FaultyEnvironment, operation: str, argument: str = "") -> None:
        try:
            usual(self, operation, argument)
        except SandboxLost:
            made.append(self)
            reached.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(FaultyEnvironment, "_wait_at", hang)
    rollout = asyncio.create_task(faulty_pool(bench).run(bad_task(bench), bench.script(say_hello), seed=0))
    await reached.wait()
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert len(FaultyEnvironment.starts) == 1
    with pytest.raises(SandboxLost):
        await LocalEnvironment.exec(made[0], "true")


class Exhausted(FaultyEnvironment):
    """A sandbox that the agent's own use ended."""

    async def exhausted(self) -> str | None:
        return "out of memory"


async def test_a_sandbox_that_the_agents_own_use_ended_is_scored_and_not_tried_again(
    bench: Bench, say_hello: list[str]
) -> None:
    FaultyEnvironment.fault = ("exec", "send-keys")
    runner = bench.runner(environment=f"{__name__}:Exhausted")
    pool = RolloutPool(runner, concurrency=1, retries=RETRIES, backoff_seconds=0.01)
    rollout = await pool.run(bad_task(bench), bench.script(say_hello), seed=0)
    assert (rollout.outcome, rollout.reward) == (Outcome.RESOURCE_LIMIT, 0.0)
    assert len(FaultyEnvironment.starts) == 1
    fine = await pool.run(bench.task, bench.script(say_hello), seed=0)
    assert (fine.outcome, fine.reward) == (Outcome.SOLVED, 1.0)


@pytest.mark.parametrize("good_calls", [0, 1], ids=["at the first call", "in the middle"])
async def test_a_model_that_is_unavailable_is_tried_again_and_then_excluded_alone(
    bench: Bench, say_hello: list[str], good_calls: int
) -> None:
    pool = faulty_pool(bench)
    down = FailingSampler(bench.script(say_hello), good_calls)
    good, bad = await asyncio.gather(
        pool.run(bench.task, bench.script(say_hello), seed=0), pool.run(bench.task, down, seed=0)
    )
    assert good.outcome is Outcome.SOLVED
    assert (bad.outcome, bad.reward, bad.tags["attempts"]) == (Outcome.MODEL_UNAVAILABLE, None, "2")
    assert "the service is down" in bad.detail


async def test_a_fault_that_passes_leaves_a_rollout_like_any_other(
    bench: Bench, say_hello: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    FaultyEnvironment.fault = ("start", "")
    pool = faulty_pool(bench)
    usual = FaultyEnvironment.start

    async def start_and_mend(self: FaultyEnvironment, force_build: bool) -> None:
        try:
            await usual(self, force_build)
        finally:
            FaultyEnvironment.fault = ("", "")

    monkeypatch.setattr(FaultyEnvironment, "start", start_and_mend)
    rollout = await pool.run(bad_task(bench), bench.script(say_hello), seed=0)
    assert (rollout.outcome, rollout.reward, rollout.tags["attempts"]) == (Outcome.SOLVED, 1.0, "2")


async def test_a_verifier_that_never_works_is_excluded_not_scored(bench: Bench, say_hello: list[str]) -> None:
    task = bench.write_task("no-verdict", {"tests/test.sh": "#!/bin/bash\nexit 3\n"})
    rollout = await faulty_pool(bench).run(task, bench.script(say_hello), seed=0)
    assert (rollout.outcome, rollout.reward) == (Outcome.VERIFIER_FAILED, None)


@pytest.mark.parametrize(
    ("script", "settings", "outcome"),
    [
        (["{}"], {"max_turns": 2}, Outcome.UNPARSABLE),
        (["true"], {"max_turns": 2}, Outcome.TURN_LIMIT),
        (["sleep 30"], {"max_turns": 50, "agent_timeout_seconds": 3.0}, Outcome.AGENT_TIMEOUT),
        (["exit"], {"max_turns": 5}, Outcome.FAILED),
        (["echo 1 > /logs/verifier/reward.txt"], {"max_turns": 1}, Outcome.TAMPERED),
    ],
    ids=["unparsable", "turn limit", "time-out", "closed", "tampered"],
)
async def test_what_the_policy_caused_is_scored_and_never_tried_again(
    bench: Bench, say: Say, script: list[str], settings: dict[str, Any], outcome: Outcome
) -> None:
    answers = [
        text if text == "{}" else say(text, duration=5.0 if "sleep" in text else 0.1) for text in script
    ]
    runner = bench.runner(environment=f"{__name__}:FaultyEnvironment", **settings)
    pool = RolloutPool(runner, concurrency=1, retries=RETRIES, backoff_seconds=0.01)
    rollout = await pool.run(bench.task, bench.script(answers, repeat_last=True), seed=0)
    assert (rollout.outcome, rollout.reward) == (outcome, 0.0)
    # Before a policy is accused of tampering, a sandbox that no agent touched is looked at.
    assert len(FaultyEnvironment.starts) == (2 if outcome is Outcome.TAMPERED else 1)
