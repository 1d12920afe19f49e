from collections.abc import Callable
from dataclasses import replace
from typing import Any

from termrl.policy.transcript import Turn
from termrl.rollout.replay import replay

Bench = Any
Say = Callable[..., str]


async def test_a_replay_shows_the_same_screens_and_gives_the_same_reward(bench: Bench, say: Say) -> None:
    answers = [
        say("seq 3", duration=0.3),
        "nonsense",
        say("echo hello > /app/hello.txt", done=True),
        say(done=True),
    ]
    stored = await bench.run(answers, early_return=True)
    report = await replay(bench.runner(early_return=True), bench.task, stored, bench.tokenizer)
    assert report.same, report.first_difference
    assert report.turns_alike == len(stored.turns) == 4
    assert report.replayed.reward == stored.reward == 1.0


async def test_a_replay_says_where_it_first_differs(bench: Bench, say: Say) -> None:
    answers = [say("echo one", duration=0.3), say("cat /proc/sys/kernel/random/uuid", duration=0.3)]
    stored = await bench.run([*answers, say(done=True), say(done=True)], early_return=True)
    report = await replay(bench.runner(early_return=True), bench.task, stored, bench.tokenizer)
    assert not report.same
    assert report.first_difference is not None
    assert report.first_difference.turn == 3
    assert any(line.startswith("-") and len(line) == 37 for line in report.first_difference.lines)
    assert report.replayed.reward == stored.reward == 0.0


async def test_a_replay_that_asks_for_more_answers_than_there_are_says_so(bench: Bench, say: Say) -> None:
    stored = await bench.run([say("true", done=True), say(done=True)])
    kept = stored.turns[0]
    first = Turn(kept.prompt, kept.sampled, kept.logprobs, 0, kept.stop_reason)
    report = await replay(bench.runner(), bench.task, replace(stored, turns=(first,)), bench.tokenizer)
    assert not report.same
    assert "has 1 answers and no more" in report.replayed.detail
