"""`termrl replay RUN ROLLOUT`: a stored rollout's answers again, in a fresh sandbox, without a model."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from termrl.cli.arguments import UsageError, parse
from termrl.cli.runs_list import DEFAULT_ROOT

if TYPE_CHECKING:
    from termrl.rollout.replay import ReplayReport

_MOST_LINES = 40


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl replay RUN [ROLLOUT] [run_root=DIR] [--json]",
            "",
            "Types a stored rollout's answers again in a fresh sandbox, without a model, compares what the",
            "agent is shown and the reward, and says where it first differs. Exits with 1 if anything does.",
            "",
            "  RUN      a run's name, the beginning of it, its path, or last",
            "  ROLLOUT  STAGE/STEP/GROUP/MEMBER, as the list shows that is printed without it",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["RUN", "ROLLOUT"], options=["run_root"], flags=["json"])
    if not given.words:
        raise UsageError("Name the run: `termrl replay last`, or one of `termrl runs list`.")
    root = Path(given.options.get("run_root", DEFAULT_ROOT)).expanduser()

    from termrl.store import Run, find_run

    path = find_run(given.words[0], root)
    if len(given.words) == 1:
        with Run.open(path) as opened:
            _print_list(opened, "json" in given.flags)
        return 0
    print(f"replaying {given.words[1]} of {path.name}", file=sys.stderr, flush=True)

    from termrl.api import replay_stored

    report = asyncio.run(replay_stored(path, given.words[1]))
    print(json.dumps(_as_dict(report), indent=1) if "json" in given.flags else _as_text(report))
    return 0 if report.same else 1


def _print_list(run: Any, as_json: bool) -> None:
    rows = []
    for stage in run.stages():
        for place, rollout in run.rollouts(stage, with_turns=False).items():
            which = f"{place.stage}/{place.step}/{place.group}/{place.member}"
            rows.append({"rollout": which, "task": rollout.task_name, "outcome": rollout.outcome.value})
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(f"{row['rollout']:<28}{row['outcome']:<20}{row['task']}")


def _as_dict(report: "ReplayReport") -> dict[str, Any]:
    first = report.first_difference
    return {
        "same": report.same,
        "turns_alike": report.turns_alike,
        "turns": {"stored": len(report.stored.turns), "replayed": len(report.replayed.turns)},
        "reward": {"stored": report.stored.reward, "replayed": report.replayed.reward},
        "outcome": {"stored": report.stored.outcome.value, "replayed": report.replayed.outcome.value},
        "first_difference": None if first is None else {"turn": first.turn, "lines": list(first.lines)},
    }


def _as_text(report: "ReplayReport") -> str:
    stored, replayed, first = report.stored, report.replayed, report.first_difference
    lines = [
        f"task      {stored.task_name}",
        f"turns     {len(stored.turns)} stored, {len(replayed.turns)} replayed, {report.turns_alike} alike",
        f"outcome   {stored.outcome} stored, {replayed.outcome} replayed",
        f"reward    {stored.reward} stored, {replayed.reward} replayed",
    ]
    if first is not None:
        lines += ["", f"What turn {first.turn} was shown is the first to differ:", *first.lines[:_MOST_LINES]]
    elif report.same:
        lines += ["", "Every turn was shown the same, and the reward is the same."]
    return "\n".join(lines)
