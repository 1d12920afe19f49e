import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from termrl.errors import UserError
from termrl.rollout.outcome import Outcome
from termrl.rollout.reward import Graded, RewardRule, load_reward_function
from termrl.sandbox.interface import SandboxInterface

Bench = Any
Say = Callable[..., str]

SEVERAL = """#!/bin/bash
echo '{"tests": 0.5, "style": 1.0}' > /logs/verifier/reward.json
echo 0 > /logs/verifier/reward.txt
"""


@pytest.mark.parametrize(
    ("rule", "rewards", "expected"),
    [
        (None, {"reward": 0.25, "other": 1}, 0.25),
        (None, {"a": 1, "b": 0}, 0.5),
        ("style", {"tests": 0, "style": 1}, 1.0),
        ("0.7*tests+0.3*style", {"tests": 1, "style": 0.5}, 0.85),
        ("tests + .5 * style", {"tests": 1, "style": 1}, 1.5),
    ],
)
def test_a_rule_says_which_number_counts(
    rule: str | None, rewards: dict[str, float], expected: float
) -> None:
    assert RewardRule.parse(rule).of(rewards) == pytest.approx(expected)


@pytest.mark.parametrize("rule", ["", "0.5*", "a*b", "2a", "a++b"])
def test_a_rule_that_cannot_be_read_is_refused(rule: str) -> None:
    with pytest.raises(UserError, match="can't be read"):
        RewardRule.parse(rule)


def test_a_key_that_the_verifier_does_not_give_is_named_with_those_it_gives() -> None:
    with pytest.raises(UserError, match="asks for speed, which the verifier does not give; it gives tests"):
        RewardRule.parse("speed").of({"tests": 1.0})


@pytest.mark.parametrize(
    "path", ["no.such.module:f", "termrl.errors:nothing", "termrl.errors", "termrl:__version__"]
)
def test_a_reward_function_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(UserError, match="reward_fn is"):
        load_reward_function(path)


async def test_partial_credit_counts_by_key_or_sum(bench: Bench, say_hello: list[str]) -> None:
    task = bench.write_task("several", {"tests/test.sh": SEVERAL})
    half = await bench.run(say_hello, task, reward="tests")
    assert (half.outcome, half.reward) == (Outcome.FAILED, 0.5)
    whole = await bench.run(say_hello, task, reward="0.4*tests+0.8*style")
    assert (whole.outcome, whole.reward) == (Outcome.SOLVED, pytest.approx(1.0))


async def of_my_own(graded: Graded, sandbox: SandboxInterface) -> float:
    said = await sandbox.run_command("cat /app/hello.txt")
    assert graded.rewards == {"reward": 1.0}
    assert len(graded.turns) == 2
    return 0.75 if said.stdout.strip() == "hello" else 0.0


def that_breaks(graded: Graded, sandbox: SandboxInterface) -> float:
    raise RuntimeError("my grader is broken")


async def test_a_grader_of_ones_own_sees_the_rollout_and_the_sandbox(
    bench: Bench, say_hello: list[str]
) -> None:
    rollout = await bench.run(say_hello, reward_fn=f"{__name__}:of_my_own")
    assert (rollout.outcome, rollout.reward) == (Outcome.FAILED, 0.75), rollout.detail


async def test_a_grader_of_ones_own_that_breaks_is_not_the_policys_fault(
    bench: Bench, say_hello: list[str]
) -> None:
    rollout = await bench.run(say_hello, reward_fn=f"{__name__}:that_breaks")
    assert (rollout.outcome, rollout.reward) == (Outcome.VERIFIER_FAILED, None)
    assert "my grader is broken" in rollout.detail


async def test_tests_arrive_byte_for_byte(bench: Bench, say_hello: list[str]) -> None:
    content = bytes(range(256)) * 8
    test = (
        '#!/bin/bash\n[ "$(sha256sum < /tests/fixture.bin | cut -c1-64)" = "$(cat /tests/sum)" ] && '
        "echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
    )
    task = bench.write_task(
        "binary", {"tests/test.sh": test, "tests/sum": hashlib.sha256(content).hexdigest()}
    )
    (task.task_dir / "tests" / "fixture.bin").write_bytes(content)
    assert (await bench.run(say_hello, task)).outcome is Outcome.SOLVED


SEPARATE = """
schema_version = "1.1"
artifacts = ["/app/hello.txt"]
[task]
name = "test/separate"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 60.0
environment_mode = "separate"
[environment]
network_mode = "no-network"
"""


async def test_a_separate_verifier_environment_sees_only_what_was_handed_over(bench: Bench, say: Say) -> None:
    test = (
        "#!/bin/bash\n[ -e /app/other.txt ] && exit 3\n"
        '[ "$(cat /app/hello.txt)" = hello ] && echo 1 > /logs/verifier/reward.txt\n'
    )
    task = bench.write_task(
        "separate",
        {"task.toml": SEPARATE, "tests/test.sh": test},
    )
    work = say(
        "echo hello > /app/hello.txt; touch /app/other.txt; echo 0 > /logs/verifier/reward.txt", done=True
    )
    rollout = await bench.run([work, say(done=True)], task)
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), rollout.detail
