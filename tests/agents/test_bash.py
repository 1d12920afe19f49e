from collections.abc import Callable
from typing import Any

import pytest

from termrl.policy.transcript import segments_of
from termrl.rollout.outcome import Outcome

Bench = Any
Call = Callable[..., str]


async def test_the_bash_agent_solves_a_task_in_one_segment(bench: Bench, call: Call) -> None:
    rollout = await bench.run([call("echo hello > /app/hello.txt"), "It is done."], agent="bash")
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), rollout.detail
    (segment,) = segments_of(rollout.turns)
    assert segment.turns == 2
    assert '"name": "bash"' in bench.tokenizer.decode(rollout.turns[0].prompt)
    assert "[exit code 0]" in bench.tokenizer.decode(rollout.turns[1].prompt)


async def test_directory_and_environment_persist_from_call_to_call(bench: Bench, call: Call) -> None:
    script = [
        call("mkdir -p /srv/there; cd /srv/there; export WORD=hello; LOST=1"),
        call("pwd; echo $WORD > /app/hello.txt; echo lost=$LOST; exit 3"),
        call("echo still $WORD in $PWD; cat /nowhere"),
        "Done.",
    ]
    rollout = await bench.run(script, agent="bash")
    assert rollout.outcome is Outcome.SOLVED, rollout.detail
    seen = bench.tokenizer.decode(rollout.turns[-1].prompt)
    assert "/srv/there\nlost=\n\n[exit code 3]" in seen
    assert "still hello in /srv/there" in seen
    assert "No such file or directory" in seen


async def test_calls_that_cannot_be_read_or_made_are_told_so(bench: Bench, call: Call) -> None:
    script = [
        "<tool_call>{not json}</tool_call>",
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        call("sleep 30", timeout=1),
        call("echo hello > /app/hello.txt"),
        "Done.",
    ]
    rollout = await bench.run(script, agent="bash")
    assert rollout.outcome is Outcome.SOLVED, rollout.detail
    seen = bench.tokenizer.decode(rollout.turns[-1].prompt)
    assert "could not be read" in seen
    assert "the only tool is bash" in seen
    assert "ended after 1 s" in seen


@pytest.mark.parametrize(
    ("script", "settings", "outcome"),
    [
        (["<tool_call>nonsense</tool_call>"], {"max_turns": 2}, Outcome.UNPARSABLE),
        (
            ['<tool_call>{"name": "bash", "arguments": {"command": "true"}}</tool_call>'],
            {"max_turns": 2},
            "turn",
        ),
        (["Nothing to do."], {}, Outcome.FAILED),
        (["x"], {"context_limit": 200, "max_tokens": 100}, Outcome.CONTEXT_EXHAUSTED),
    ],
    ids=["unparsable", "turn limit", "gives up", "context"],
)
async def test_endings_have_their_outcomes(
    bench: Bench, script: list[str], settings: dict[str, Any], outcome: Any
) -> None:
    rollout = await bench.run(bench.script(script, repeat_last=True), agent="bash", **settings)
    assert rollout.outcome is (Outcome.TURN_LIMIT if outcome == "turn" else outcome)
    assert rollout.reward == 0.0
