"""Training tokens of a long rollout, and what the loop itself costs, up to 10,000 rollouts in a batch.

The first is compared with one datum a turn on the same rollout. The second is the time that the loop adds to
sampling and training: storing the rollouts, drawing groups, advantages, datums, numbers, credits. It is
compared with the time of a step whose rollouts are as short as real ones get.

    .venv/bin/python bench/datums.py [--json] [--check]
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from termrl.config import TrainConfig
from termrl.learn.batch import make_batch
from termrl.learn.datums import rollout_lessons
from termrl.learn.numbers import batch_numbers, rollout_numbers
from termrl.policy.transcript import Transcript
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.store import Place, Run
from termrl.store.ledger import DrawnGroup

MOST_TOKENS_RATIO = 1.05
MOST_OVERHEAD = 0.02
MOST_GROWTH = 1.5
"""How much more CPU a rollout may take in the largest batch than in the smallest: noise, but not a square."""
GROUP_SIZE = 8
SECONDS_A_TURN = 0.5
"""A turn takes at least this: one answer of a fast model and one command. Real ones take more."""


def long_rollout(turns: int, random: Random, *, answer: int = 120, screen: int = 250) -> Rollout:
    """A rollout as Terminus-2 makes it: each prompt extends the last answer by a screen."""
    made = Transcript()
    observed = 900
    for _ in range(turns):
        made.add(
            [random.randrange(50_000) for _ in range(observed)],
            [random.randrange(50_000) for _ in range(answer)],
            [-0.5] * answer,
            policy_version=0,
            stop_reason="stop",
            after=made.last,
        )
        observed = screen
    solved = random.random() < 0.5
    return Rollout(
        "a-task",
        Outcome.SOLVED if solved else Outcome.FAILED,
        float(solved),
        tuple(made.turns),
        Timings(total=turns * SECONDS_A_TURN),
    )


def tokens_of(turns: int) -> dict[str, float]:
    rollout = long_rollout(turns, Random(0))
    trained = sum(lesson.length for lesson in rollout_lessons(rollout.turns, 1.0))
    by_turn = sum(len(turn.tokens) - 1 for turn in rollout.turns)
    needed = max(len(turn.tokens) for turn in rollout.turns)
    return {"turns": turns, "trained": trained, "ratio": trained / needed, "by_turn_ratio": by_turn / needed}


def overhead_of(rollouts: int, turns: int) -> dict[str, float]:
    """Seconds per rollout that the loop itself takes for a step of so many."""
    random = Random(1)
    kinds = [long_rollout(turns, random, answer=40, screen=60) for _ in range(16)]
    groups = [
        [kinds[random.randrange(len(kinds))] for _ in range(GROUP_SIZE)]
        for _ in range(rollouts // GROUP_SIZE)
    ]
    config = TrainConfig(batch_size=len(groups), group_size=GROUP_SIZE)
    with (
        tempfile.TemporaryDirectory() as directory,
        Run.create(Path(directory) / "run", kind="train", settings={}) as run,
    ):
        began, cpu_began = time.perf_counter(), time.process_time()
        run.ledger.draw([DrawnGroup(number, "a-task", 0) for number in range(len(groups))])
        for number, group in enumerate(groups):
            for member, rollout in enumerate(group):
                run.add_rollout(Place("train", 0, number, member), rollout)
        run.ledger.enter(0, 0, range(len(groups)))
        batch = make_batch(groups, config, step=0)
        datums = [lesson.datum() for part in batch.minibatches(4) for lesson in part]
        numbers = rollout_numbers(groups, 0) | batch_numbers([batch])
        run.ledger.credit(0, [(c.group, c.member, c.shaped_reward, c.advantage) for c in batch.credits])
        run.record_step(0, numbers)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    assert len(datums) == len(batch.credits)
    a_step = rollouts * turns * SECONDS_A_TURN / config.n_parallel_envs
    return {
        "rollouts": rollouts,
        "seconds_per_rollout": seconds / rollouts,
        "cpu_seconds_per_rollout": cpu_seconds / rollouts,
        "share_of_a_step": seconds / a_step,
        "cpu_share_of_a_step": cpu_seconds / a_step,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 where a promised figure is missed")
    parser.add_argument("--rollouts", default="1000,3000,10000", help="sizes of a batch")
    arguments = parser.parse_args()
    tokens = tokens_of(50)
    overhead_of(80, 10)
    overheads = [overhead_of(int(size), 10) for size in arguments.rollouts.split(",")]
    growth = overheads[-1]["cpu_seconds_per_rollout"] / overheads[0]["cpu_seconds_per_rollout"]
    share = max(each["share_of_a_step"] for each in overheads)
    report: dict[str, Any] = {"tokens": tokens, "overhead": overheads, "growth": growth, "share": share}
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        print(
            f"training tokens of 50 turns: {tokens['ratio']:.3f} of the longest prompt and its answer "
            f"(one datum a turn: {tokens['by_turn_ratio']:.1f})"
        )
        for each in overheads:
            print(
                f"{each['rollouts']:>6} rollouts a step: {1e3 * each['seconds_per_rollout']:.2f} ms of the "
                f"loop's own each, {each['share_of_a_step']:.2%} of a step "
                f"({each['cpu_share_of_a_step']:.2%} of it in CPU time)"
            )
        print(f"a rollout takes {growth:.2f} times as much CPU in the largest batch as in the smallest")
    missed = [
        sentence
        for sentence, bad in (
            (
                f"training tokens are {tokens['ratio']:.3f}, not at most {MOST_TOKENS_RATIO}",
                tokens["ratio"] > MOST_TOKENS_RATIO,
            ),
            (f"the loop takes {share:.2%} of a step, not under {MOST_OVERHEAD:.0%}", share >= MOST_OVERHEAD),
            (
                f"a rollout takes {growth:.2f} times as much CPU in a large batch: not linear",
                growth > MOST_GROWTH,
            ),
        )
        if bad
    ]
    if arguments.check and missed:
        print("; ".join(missed))
        sys.exit(1)


if __name__ == "__main__":
    main()
