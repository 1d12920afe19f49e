"""The ledger of a training run: which groups were drawn, what each step was trained on, who got what credit.

A group is written here when its task is drawn, and into its step's batch before it is trained on. So the
order of the data, however it was chosen, and the composition of every batch survive a break: a step is
replayed on what it was trained on, and what is drawn but untrained goes on.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from termrl.store.database import storing


@dataclass(frozen=True, slots=True)
class DrawnGroup:
    """A group's number in the order of drawing, its task, and the weights' version when it was drawn.

    `in_place_of` is the number of the group that lagged too far and was drawn anew as this one.
    """

    number: int
    task_name: str
    version: int
    in_place_of: int | None = None


class Ledger:
    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._db = connection

    def draw(self, groups: Sequence[DrawnGroup]) -> None:
        """Commits that these groups were drawn."""
        with storing("the drawn tasks", self._path), self._db:
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT INTO groups VALUES (?, ?, ?, ?)",
                [(group.number, group.task_name, group.version, group.in_place_of) for group in groups],
            )

    def groups(self) -> dict[int, DrawnGroup]:
        """Every group drawn so far, by number."""
        rows = self._db.execute("SELECT number, task_name, version, in_place_of FROM groups ORDER BY number")
        return {row[0]: DrawnGroup(*row) for row in rows}

    def enter(self, step: int, position: int, numbers: Sequence[int]) -> None:
        """Commits that these groups are the step's, from a position on, before they are trained on."""
        with storing(f"the batch of step {step}", self._path), self._db:
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT INTO batches VALUES (?, ?, ?)",
                [(step, position + index, number) for index, number in enumerate(numbers)],
            )

    def batch(self, step: int) -> list[int]:
        """The numbers of the groups that a step is trained on, in order, as far as they are known."""
        rows = self._db.execute("SELECT number FROM batches WHERE step = ? ORDER BY position", (step,))
        return [row[0] for row in rows]

    def batches(self) -> dict[int, int]:
        """The step of every group that is in a batch, in the order of training."""
        rows = self._db.execute("SELECT number, step FROM batches ORDER BY step, position")
        return {row[0]: row[1] for row in rows}

    def credit(self, step: int, credits: Sequence[tuple[int, int, float, float]]) -> None:
        """Keeps what each rollout was worth: group number, member, shaped reward, advantage."""
        with storing(f"the credits of step {step}", self._path), self._db:
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT OR REPLACE INTO credits VALUES (?, ?, ?, ?, ?)",
                [(step, *credit) for credit in credits],
            )

    def credits(self, step: int) -> list[tuple[int, int, float, float]]:
        rows = self._db.execute(
            "SELECT number, member, shaped_reward, advantage FROM credits WHERE step = ? "
            "ORDER BY number, member",
            (step,),
        )
        return [tuple(row) for row in rows]
