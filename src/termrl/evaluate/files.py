"""The files of an evaluation: results.json, results.md, and one JSON a rollout as soon as it ends.

A file appears whole or not at all. Where they go is made and tried before the first rollout: a path that
can't be written is said while nothing is lost yet.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from termrl.errors import UserError
from termrl.evaluate.markdown import results_page
from termrl.evaluate.results import RESULTS
from termrl.policy.tokenizer import Tokenizer
from termrl.rollout.record import Rollout

PAGE = "results.md"
ROLLOUTS = "rollouts"


class OutputPathError(UserError):
    """The results could not be written where they were asked for."""


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Where the three go: in a directory, or beside a results file that has a name of its own."""

    results: Path
    page: Path
    rollouts: Path

    @classmethod
    def at(cls, path: Path) -> "OutputFiles":
        if path.suffix == ".json" and not path.is_dir():
            return cls(path, path.with_suffix(".md"), path.with_suffix("") / ROLLOUTS)
        return cls(path / RESULTS, path / PAGE, path / ROLLOUTS)

    def prepare(self) -> None:
        """Makes the directories and tries them; raises `OutputPathError`."""
        for directory in (self.results.parent, self.rollouts):
            try:
                directory.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=directory):
                    pass
            except OSError as error:
                raise OutputPathError(
                    f"The results can't be written to {directory}: {error.strerror or error}; "
                    "give another output_path."
                ) from error

    def write(self, results: Mapping[str, Any]) -> None:
        write_whole(self.results, json.dumps(results, indent=1) + "\n")
        write_whole(self.page, results_page(results))

    def rollout(self, index: int, task: str, attempt: int) -> Path:
        return self.rollouts / f"{index:04d}-{_safe(task)}.{attempt}.json"

    def write_rollout(self, path: Path, record: Mapping[str, Any]) -> None:
        write_whole(path, json.dumps(record, indent=1) + "\n")


def rollout_record(
    rollout: Rollout, *, index: int, attempt: int, seed: int, passed: bool | None, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Everything about one attempt, with what was said as text where its tokens can be read."""
    return {
        "task": rollout.task_name,
        "index": index,
        "attempt": attempt,
        "passed": passed,
        "outcome": rollout.outcome.value,
        "excluded": not rollout.outcome.scored,
        "reward": rollout.reward,
        "detail": rollout.detail,
        "seed": seed,
        "usage": asdict(rollout.used),
        "seconds": asdict(rollout.timings),
        "trial_dir": Path(rollout.trial_dir).name,
        "tags": rollout.tags,
        "turns": _turns(rollout, tokenizer.decode) if tokenizer is not None else _trajectory(rollout),
    }


def _turns(rollout: Rollout, decode: Callable[[list[int]], str]) -> list[dict[str, Any]]:
    turns = []
    seen = 0
    before: tuple[int, ...] = ()
    for turn in rollout.turns:
        prompt = tuple(turn.prompt)
        seen = len(before) if prompt[: len(before)] == before else 0
        turns.append(
            {
                "observed": decode(list(prompt[seen:])),
                "answer": decode(list(turn.sampled)),
                "continues": bool(seen),
                "prompt_tokens": len(prompt),
                "sampled_tokens": len(turn.sampled),
                "stop_reason": turn.stop_reason,
                "seconds": turn.seconds,
            }
        )
        before = prompt + tuple(turn.sampled)
    return turns


def _trajectory(rollout: Rollout) -> list[dict[str, Any]]:
    """What an agent with a model of its own wrote down, in Harbor's form, where it did."""
    path = Path(rollout.trial_dir) / "agent" / "trajectory.json"
    try:
        steps = json.loads(path.read_text()).get("steps", [])
    except (OSError, ValueError):
        return []
    return [step for step in steps if isinstance(step, dict)]


def write_whole(path: Path, text: str) -> None:
    """Writes a file under another name and moves it to its own."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        raise OutputPathError(
            f"{path} could not be written: {error.strerror or error}. The rollouts are stored; make room and "
            "give the same command again to write it."
        ) from error


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:80]
