"""One SQLite file a run: the schema, the connection, and what can go wrong with either.

WAL where the disk can carry it, a rollback journal where it can't (network disks). Every write is one
transaction that is on disk when the call returns. A file of an older schema version is brought up to date
when it is opened; one of a newer version is refused, never touched.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from termrl.errors import StorageError, UserError

SCHEMA_VERSION = 2

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE rollouts (
  id INTEGER PRIMARY KEY,
  stage TEXT NOT NULL, step INTEGER NOT NULL, group_index INTEGER NOT NULL, member INTEGER NOT NULL,
  task_name TEXT NOT NULL, outcome TEXT NOT NULL, reward REAL,
  turn_count INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, sampled_tokens INTEGER NOT NULL,
  seconds_setup REAL NOT NULL, seconds_agent REAL NOT NULL, seconds_model REAL NOT NULL,
  seconds_verifier REAL NOT NULL, seconds_total REAL NOT NULL,
  detail TEXT NOT NULL, trial_dir TEXT NOT NULL, tags TEXT NOT NULL, turns BLOB NOT NULL,
  finished_at REAL NOT NULL,
  UNIQUE (stage, step, group_index, member)
);
CREATE TABLE steps (
  step INTEGER PRIMARY KEY, metrics TEXT NOT NULL, finished_at REAL NOT NULL
);
CREATE TABLE checkpoints (
  name TEXT PRIMARY KEY, step INTEGER NOT NULL, state_path TEXT NOT NULL, sampler_path TEXT NOT NULL,
  saved_at REAL NOT NULL, kind TEXT NOT NULL DEFAULT 'periodic'
);
CREATE TABLE phases (
  name TEXT PRIMARY KEY, seconds REAL NOT NULL, done INTEGER NOT NULL, facts TEXT NOT NULL
);
"""

_LEDGER = """
CREATE TABLE groups (
  number INTEGER PRIMARY KEY, task_name TEXT NOT NULL, version INTEGER NOT NULL,
  in_place_of INTEGER REFERENCES groups (number)
);
CREATE TABLE batches (
  step INTEGER NOT NULL, position INTEGER NOT NULL, number INTEGER NOT NULL UNIQUE,
  PRIMARY KEY (step, position)
) WITHOUT ROWID;
CREATE TABLE credits (
  step INTEGER NOT NULL, number INTEGER NOT NULL, member INTEGER NOT NULL,
  shaped_reward REAL NOT NULL, advantage REAL NOT NULL,
  PRIMARY KEY (step, number, member)
) WITHOUT ROWID;
"""

_MIGRATIONS = {
    1: f"""
    ALTER TABLE checkpoints ADD COLUMN kind TEXT NOT NULL DEFAULT 'periodic';
    {_LEDGER}
    INSERT INTO groups SELECT DISTINCT
      step * (SELECT json_extract(value, '$.batch_size') FROM meta WHERE key = 'settings') + group_index,
      task_name, step, NULL FROM rollouts WHERE stage = 'train';
    INSERT INTO batches SELECT DISTINCT step, group_index,
      step * (SELECT json_extract(value, '$.batch_size') FROM meta WHERE key = 'settings') + group_index
      FROM rollouts WHERE stage = 'train' AND step IN (SELECT step FROM steps);
    """
}
"""What takes a file from a version to the next."""


class WrongVersionError(UserError):
    """The run was written by a version of termrl whose store this one can't read."""


class NotARunError(UserError):
    """The path holds no run."""


def connect(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Opens a run's database, making it when `create`."""
    if not create and not path.is_file():
        raise NotARunError(
            f"{path.parent} is not a run: it has no {path.name}. `termrl runs list` shows the runs."
        )
    with storing("the run's database", path):
        connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and create:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.executescript(
                    f"BEGIN;{_SCHEMA}{_LEDGER}PRAGMA user_version={SCHEMA_VERSION};COMMIT;"
                )
            elif 0 < version < SCHEMA_VERSION:
                for older in range(version, SCHEMA_VERSION):
                    connection.executescript(
                        f"BEGIN IMMEDIATE;{_MIGRATIONS[older]}PRAGMA user_version={older + 1};COMMIT;"
                    )
            elif version != SCHEMA_VERSION:
                raise WrongVersionError(
                    f"{path} has store version {version}, this termrl reads version {SCHEMA_VERSION}: "
                    "use the termrl that wrote it, or start a new run with another run_name."
                )
            connection.execute("PRAGMA synchronous=FULL")
            connection.row_factory = sqlite3.Row
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def storing(what: str, path: Path) -> Iterator[None]:
    """Turns SQLite's word for a full or broken disk into a sentence."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if "not a database" in str(error):
            raise WrongVersionError(f"{path} is not a termrl store: {error}.") from error
        if isinstance(error, sqlite3.OperationalError):
            raise StorageError(
                f"Could not write {what} to {path}: {error}. Everything stored before is intact; "
                "free some space and run the same command again to go on."
            ) from error
        raise
