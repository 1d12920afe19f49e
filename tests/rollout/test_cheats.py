"""Agents that want the reward without the work get none, and never by way of an exclusion."""

from collections.abc import Callable
from typing import Any

import pytest
from harbor.environments.base import ExecResult

from termrl.rollout.cheats import CHEATS, Cheat
from termrl.rollout.outcome import Outcome
from termrl.rollout.pool import RolloutPool
from termrl.sandbox.local import LocalEnvironment

Bench = Any
Say = Callable[..., str]

TASK = """
schema_version = "1.1"
[task]
name = "test/guarded"
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 4.0
[environment]
network_mode = "no-network"
storage_mb = 64
"""
# It runs what verifiers run: a shell, coreutils, Python by name and as `env` finds it, a module from the
# directory it is in.
TEST = """#!/bin/bash
cd /app
result=$(cat hello.txt 2>/dev/null)
checked=$(/usr/bin/env python3 -c 'import sys; print(int(sys.argv[1] == "hello"))' "$result")
python3 -m pytest --version >/dev/null 2>&1
echo "${checked:-0}" > /logs/verifier/reward.txt
"""
SEEN = {
    *(
        "reward-txt",
        "reward-json",
        "daemon",
        "tests",
        "symlinks",
        "mounts",
        "bin",
        "pytest",
        "preload",
        "disk",
    ),
}
"""Those whose traces are there to be seen in our own sandbox; the others leave none, or can't do a thing."""
TOO_SLOW = "daemon"
"""It may not have written anything by the time the verifier's directory is out of its sight."""


def guarded(bench: Bench) -> Any:
    return bench.write_task("guarded", {"task.toml": TASK, "tests/test.sh": TEST})


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
async def test_a_cheating_agent_scores_nothing(bench: Bench, cheat: Cheat) -> None:
    settings = {"agent": "termrl.rollout.cheats:CheatingAgent", "agent_kwargs": (("cheat", cheat.name),)}
    pool = RolloutPool(bench.runner(**settings), concurrency=1, retries=2, backoff_seconds=0)
    rollout = await pool.run(guarded(bench), bench.script([]), seed=0)
    assert rollout.reward == 0.0
    if cheat.name != TOO_SLOW:
        expected = Outcome.TAMPERED if cheat.name in SEEN else Outcome.FAILED
        assert rollout.outcome is expected, rollout.detail
    if cheat.name == "hang":
        assert "works in a fresh sandbox, but not after the agent's work" in rollout.detail


class Plain(LocalEnvironment):
    """A sandbox as others are: the verifier has no view of its own there."""

    prepare_verification = None  # type: ignore[assignment]


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
async def test_a_cheating_agent_scores_nothing_where_directories_cannot_be_private(
    bench: Bench, cheat: Cheat
) -> None:
    settings = {"agent": "termrl.rollout.cheats:CheatingAgent", "agent_kwargs": (("cheat", cheat.name),)}
    runner = bench.runner(environment=f"{__name__}:Plain", **settings)
    pool = RolloutPool(runner, concurrency=1, retries=2, backoff_seconds=0)
    rollout = await pool.run(guarded(bench), bench.script([]), seed=0)
    assert rollout.reward == 0.0, rollout.detail


async def test_an_honest_agent_is_believed_where_directories_cannot_be_private(
    bench: Bench, say_hello: list[str]
) -> None:
    rollout = await bench.run(say_hello, guarded(bench), environment=f"{__name__}:Plain")
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), rollout.detail


class Cramped(Plain):
    """The kernel kills what looks at programs, as where memory is full; here for certain."""

    async def exec(self, command: str, *args: Any, **kwargs: Any) -> ExecResult:
        looks = "stat -L" in command
        return await super().exec(f"kill -9 $$; {command}" if looks else command, *args, **kwargs)


async def test_a_look_that_was_killed_accuses_nobody_and_lets_nobody_escape(
    bench: Bench, say_hello: list[str]
) -> None:
    rollout = await bench.run(say_hello, guarded(bench), environment=f"{__name__}:Cramped")
    assert (rollout.outcome, rollout.reward) == (Outcome.RESOURCE_LIMIT, 0.0), rollout.detail
    assert rollout.detail.startswith("what looks for the agent's changes was killed in the sandbox")


async def test_an_honest_agent_is_not_taken_for_one(bench: Bench, say_hello: list[str]) -> None:
    rollout = await bench.run(say_hello, guarded(bench))
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), rollout.detail


async def test_what_the_tasks_own_solution_changes_too_is_no_tampering(bench: Bench, say: Say) -> None:
    solution = "#!/bin/bash\nmkdir -p /tests\necho hello > /app/hello.txt\n"
    task = bench.write_task("makes-tests", {"solution/solve.sh": solution})
    work = [say("mkdir /tests; echo hello > /app/hello.txt", done=True), say(done=True)]
    assert (await bench.run(work, task)).outcome is Outcome.SOLVED
    worse = [say("mkdir /tests; echo 1 > /logs/verifier/reward.txt", done=True), say(done=True)]
    rollout = await bench.run(worse, task)
    assert (rollout.outcome, rollout.reward) == (Outcome.TAMPERED, 0.0)
    assert rollout.detail == "changed by the agent: /logs/verifier"


async def test_a_server_that_the_agent_started_is_still_there_for_the_tests(bench: Bench, say: Say) -> None:
    test = (
        "#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/8123 && read -r line <&3\n"
        '[ "$line" = served ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n'
    )
    task = bench.write_task("server", {"tests/test.sh": test})
    server = (
        'import socket; s=socket.create_server(("127.0.0.1",8123))\n'
        'while True: c,_=s.accept(); c.sendall(b"served\\\\n"); c.close()'
    )
    start = f"printf '{server}' > /app/s.py; nohup python3 /app/s.py >/dev/null 2>&1 &"
    rollout = await bench.run([say(start, done=True, duration=1.0), say(done=True)], task)
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), rollout.detail
