"""A run: a directory with one SQLite file that holds all that must not be lost.

A finished rollout is committed before it is used; a step is recorded after it was applied, a phase
after it was done. Reading it back is enough to go on after `kill -9`. Metrics, trials and pictures
beside the file are for people.
"""

import fcntl
import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from termrl import __version__
from termrl.errors import StorageError, UserError
from termrl.policy.usage import Usage
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.store.database import connect, storing
from termrl.store.ledger import Ledger
from termrl.store.turns import decode_turns, encode_turns

DATABASE = "run.sqlite"


class RunBusyError(UserError):
    """Another process is writing this run."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a rollout belongs: the stage of the run, the step, its group, its place in the group."""

    stage: str
    step: int
    group: int
    member: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str
    step: int
    state_path: str
    sampler_path: str
    kind: str = "periodic"


class Run:
    """An open run. Writers hold its lock; readers need none."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: IO[str] | None = None) -> None:
        self.path = path
        self._db = connection
        self._lock = lock
        self.ledger = Ledger(path, connection)

    @classmethod
    def create(cls, path: Path, *, kind: str, settings: dict[str, Any]) -> "Run":
        """Makes a new run at `path`, or opens the one a killed process made there and never filled."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"Could not make the run directory {path}: {error}.") from error
        lock = _lock(path)
        run = cls(path, connect(path / DATABASE, create=True), lock)
        run._set_meta(
            {
                "kind": kind,
                "name": path.name,
                "created_at": time.time(),
                "termrl_version": __version__,
                "settings": settings,
            }
        )
        return run

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> "Run":
        connection = connect(path / DATABASE)
        return cls(path, connection, _lock(path) if write else None)

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def kind(self) -> str:
        return str(self._meta("kind"))

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self._meta("settings")
        return settings

    @property
    def created_at(self) -> float:
        return float(self._meta("created_at"))

    def fact(self, key: str, default: Any = None) -> Any:
        """A fact about the run that was recorded with `record_fact`."""
        return self._meta(f"fact.{key}", default)

    def record_fact(self, key: str, value: Any) -> None:
        self._set_meta({f"fact.{key}": value})

    def add_rollout(self, place: Place, rollout: Rollout) -> None:
        """Commits a finished rollout; when this returns it is on disk. Takes a retried exclusion's place."""
        timings, used = rollout.timings, rollout.used
        tags = rollout.tags | ({_COST: str(used.cost)} if used.cost is not None else {})
        with storing(f"a rollout of {rollout.task_name}", self.path):
            self._db.execute(
                f"INSERT OR REPLACE INTO rollouts VALUES (NULL{',?' * 20})",
                (
                    place.stage,
                    place.step,
                    place.group,
                    place.member,
                    rollout.task_name,
                    rollout.outcome.value,
                    rollout.reward,
                    used.turns,
                    used.prompt_tokens,
                    used.sampled_tokens,
                    timings.setup,
                    timings.agent,
                    timings.model,
                    timings.verifier,
                    timings.total,
                    rollout.detail,
                    rollout.trial_dir,
                    json.dumps(tags),
                    encode_turns(rollout.turns),
                    time.time(),
                ),
            )

    def rollouts(
        self, stage: str, step: int | None = None, *, with_turns: bool = True
    ) -> dict[Place, Rollout]:
        """The rollouts of a stage (of one step), in order of place. Without turns it is cheap."""
        condition, values = ("AND step = ?", (stage, step)) if step is not None else ("", (stage,))
        columns = "*" if with_turns else _WITHOUT_TURNS
        rows = self._db.execute(
            f"SELECT {columns} FROM rollouts WHERE stage = ? {condition} ORDER BY step, group_index, member",
            values,
        )
        return {_place(row): _rollout(row, with_turns) for row in rows}

    def group(self, stage: str, step: int, group: int) -> dict[int, Rollout]:
        """The rollouts of one group by their place in it."""
        rows = self._db.execute(
            "SELECT * FROM rollouts WHERE stage = ? AND step = ? AND group_index = ? ORDER BY member",
            (stage, step, group),
        )
        return {row["member"]: _rollout(row, True) for row in rows}

    def rollout(self, place: Place) -> Rollout:
        """One stored rollout, with its turns; KeyError where there is none."""
        row = self._db.execute(
            "SELECT * FROM rollouts WHERE stage = ? AND step = ? AND group_index = ? AND member = ?",
            (place.stage, place.step, place.group, place.member),
        ).fetchone()
        if row is None:
            raise KeyError(place)
        return _rollout(row, True)

    def committed(self, stage: str) -> dict[Place, float]:
        """When each rollout of a stage was committed."""
        rows = self._db.execute(
            "SELECT stage, step, group_index, member, finished_at FROM rollouts WHERE stage = ?", (stage,)
        )
        return {_place(row): row["finished_at"] for row in rows}

    def stages(self) -> list[str]:
        return [
            row[0] for row in self._db.execute("SELECT stage FROM rollouts GROUP BY stage ORDER BY min(id)")
        ]

    def token_totals(self) -> dict[str, dict[str, int]]:
        """Rollouts, prompt tokens and sampled tokens per stage."""
        rows = self._db.execute(
            "SELECT stage, count(*), sum(prompt_tokens), sum(sampled_tokens) FROM rollouts GROUP BY stage"
        )
        return {row[0]: {"rollouts": row[1], "prompt": row[2], "sampled": row[3]} for row in rows}

    def record_step(self, step: int, metrics: dict[str, Any], checkpoint: Checkpoint | None = None) -> None:
        """Records that a step was applied and, in the same transaction, where its weights are."""
        with storing(f"step {step}", self.path), self._db:
            self._db.execute("BEGIN")
            self._db.execute(
                "INSERT OR REPLACE INTO steps VALUES (?, ?, ?)", (step, json.dumps(metrics), time.time())
            )
            if checkpoint is not None:
                self._insert_checkpoint(checkpoint)

    def record_checkpoint(self, checkpoint: Checkpoint) -> None:
        with storing(f"checkpoint {checkpoint.name}", self.path):
            self._insert_checkpoint(checkpoint)

    def _insert_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)",
            (
                checkpoint.name,
                checkpoint.step,
                checkpoint.state_path,
                checkpoint.sampler_path,
                time.time(),
                checkpoint.kind,
            ),
        )

    def forget_checkpoint(self, name: str) -> None:
        """A checkpoint that another one replaced is no longer there to go on from."""
        with storing(f"checkpoint {name}", self.path):
            self._db.execute("DELETE FROM checkpoints WHERE name = ?", (name,))

    def checkpoints(self) -> list[Checkpoint]:
        rows = self._db.execute(
            "SELECT name, step, state_path, sampler_path, kind FROM checkpoints ORDER BY step, saved_at"
        )
        return [Checkpoint(*row) for row in rows]

    def steps(self) -> dict[int, dict[str, Any]]:
        rows = self._db.execute("SELECT step, metrics FROM steps ORDER BY step")
        return {row[0]: json.loads(row[1]) for row in rows}

    def record_phase(
        self, name: str, *, seconds: float, done: bool, facts: dict[str, Any] | None = None
    ) -> None:
        """Adds `seconds` to a phase, so that a resumed phase reports the time of all its sittings."""
        with storing(f"phase {name}", self.path):
            self._db.execute(
                "INSERT INTO phases VALUES (:name, :seconds, :done, :facts) ON CONFLICT (name) DO UPDATE SET "
                "seconds = seconds + :seconds, done = :done, facts = :facts",
                {"name": name, "seconds": seconds, "done": int(done), "facts": json.dumps(facts or {})},
            )

    def phases(self) -> dict[str, dict[str, Any]]:
        rows = self._db.execute("SELECT name, seconds, done, facts FROM phases ORDER BY rowid")
        return {row[0]: {"seconds": row[1], "done": bool(row[2]), **json.loads(row[3])} for row in rows}

    def phase_done(self, name: str) -> bool:
        return bool(self.phases().get(name, {}).get("done", False))

    def _meta(self, key: str, default: Any = None) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return default if row is None else json.loads(row[0])

    def _set_meta(self, values: dict[str, Any]) -> None:
        with storing("the run's settings", self.path), self._db:
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)",
                [(key, json.dumps(value)) for key, value in values.items()],
            )


_COST = "cost_usd"
"""The tag that keeps what a rollout cost."""

_WITHOUT_TURNS = (
    "stage, step, group_index, member, task_name, outcome, reward, turn_count, prompt_tokens, sampled_tokens,"
    "seconds_setup, seconds_agent, seconds_model, seconds_verifier, seconds_total, detail, trial_dir, tags"
)


def _place(row: sqlite3.Row) -> Place:
    return Place(row["stage"], row["step"], row["group_index"], row["member"])


def _rollout(row: sqlite3.Row, with_turns: bool) -> Rollout:
    tags: dict[str, str] = json.loads(row["tags"])
    cost = tags.pop(_COST, None)
    return Rollout(
        task_name=row["task_name"],
        outcome=Outcome(row["outcome"]),
        reward=row["reward"],
        turns=decode_turns(row["turns"]) if with_turns else (),
        timings=Timings(
            setup=row["seconds_setup"],
            agent=row["seconds_agent"],
            model=row["seconds_model"],
            verifier=row["seconds_verifier"],
            total=row["seconds_total"],
        ),
        detail=row["detail"],
        trial_dir=row["trial_dir"],
        tags=tags,
        usage=Usage(
            row["turn_count"],
            row["prompt_tokens"],
            row["sampled_tokens"],
            None if cost is None else float(cost),
        ),
    )


def _lock(path: Path) -> IO[str]:
    handle = (path / "lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        raise RunBusyError(
            f"Another termrl process is writing the run {path}: wait for it, or use another run_name."
        ) from error
    return handle


def find_run(name: str, run_root: Path) -> Path:
    """The directory of a run given by name, unique prefix, path, or `last`."""
    as_path = Path(name).expanduser()
    if (as_path / DATABASE).is_file():
        return as_path
    paths = list_runs(run_root)
    if not paths:
        raise UserError(
            f"There are no runs under {run_root}: `termrl train` makes one, run_root= names another place."
        )
    if name == "last":
        return paths[-1]
    matches = [path for path in paths if path.name == name] or [
        path for path in paths if path.name.startswith(name)
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f"'{name}' fits {_some(matches)}: type more of the name.")
    raise UserError(f"There is no run '{name}' under {run_root}; there are {_some(paths[-5:])}.")


def list_runs(run_root: Path) -> list[Path]:
    """The directories of the runs under `run_root`, oldest first."""
    if not run_root.is_dir():
        return []
    return sorted(
        (path.parent for path in run_root.glob(f"*/{DATABASE}")),
        key=lambda path: (_created_at(path), path.name),
    )


def _created_at(path: Path) -> float:
    try:
        with Run.open(path) as run:
            return run.created_at
    except UserError:
        return path.stat().st_mtime


def _some(paths: Iterable[Path]) -> str:
    return ", ".join(path.name for path in paths)
