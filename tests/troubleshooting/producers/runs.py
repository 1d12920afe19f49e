"""Messages of docs/troubleshooting.md: runs and results."""

import sqlite3

from producers import Place, said_by, says
from termrl.config import EvalConfig
from termrl.store import Run
from termrl.store.run import DATABASE

said_by("… is …: it must be … to …", "eval", "power", "difference=0", "tasks=9", "rate=0.5")
said_by("tasks is 0: it takes at least one.", "eval", "power", "difference=5", "tasks=0", "rate=0.5")
said_by("There are no runs under …: …", "runs", "show", "last")
said_by("Name two evaluations or more to compare: `termrl eval compare A B`.", "eval", "compare", "a")
said_by("Say how large a difference should be seen, in points: difference=5.", "eval", "power")
said_by(
    "Name an evaluation, or say how many tasks and what rate: tasks=89 rate=0.3.",
    *("eval", "power", "difference=5"),
)


@says("The evaluation was begun with …, not …: …")
def _(place: Place) -> list[str]:
    place.evaluation(EvalConfig(run_name="e"))
    return ["eval", "run_name=e", "max_turns=3"]


@says("There is no run '…' under …; there are …")
def _(place: Place) -> list[str]:
    place.run("old")
    return ["runs", "show", "new"]


@says("'…' fits …: type more of the name.")
def _(place: Place) -> list[str]:
    place.run("old-1")
    place.run("old-2")
    return ["runs", "show", "old"]


@says("… is not a run: it has no …. `termrl runs list` shows the runs.")
def _(place: Place) -> None:
    Run.open(place.path)


@says("… has store version …, this termrl reads version …: …")
def _(place: Place) -> list[str]:
    database = sqlite3.connect(place.run("old") / DATABASE)
    database.execute("PRAGMA user_version=77")
    database.close()
    return ["runs", "show", "old"]


@says("Another termrl process is writing the run …: wait for it, or use another run_name.")
def _(place: Place) -> None:
    path = place.run("old")
    with Run.open(path, write=True):
        Run.open(path, write=True)


@says("Could not make the run directory …")
def _(place: Place) -> None:
    Run.create(place.file("file") / "run", kind="eval", settings={})


@says("Could not write … Everything stored before is intact; …")
def _(place: Place) -> None:
    with Run.open(place.run("old"), write=True) as run:
        run._db.execute("PRAGMA query_only=ON")
        run.record_fact("a", 1)


@says("The results can't be written to …: …; give another output_path.")
def _(place: Place) -> list[str]:
    place.file("file")
    return ["eval", "output_path=file/out"]


@says("There is no results.json in …: the evaluation has not ended; give its command again.")
def _(place: Place) -> list[str]:
    place.results("a")
    place.run("b")
    return ["eval", "compare", "a", "b"]


@says("… can't be read as results of an evaluation: …")
def _(place: Place) -> list[str]:
    place.file("a.json", "{")
    return ["eval", "compare", "a.json", "a.json"]


@says("… does not hold the results of an evaluation of this termrl.")
def _(place: Place) -> list[str]:
    place.file("a.json", "{}")
    return ["eval", "compare", "a.json", "a.json"]


@says("… their tasks are not the same, byte for byte; …")
def _(place: Place) -> list[str]:
    place.results("a")
    place.results("b", digest="other")
    return ["eval", "compare", "a", "b"]


@says("… have no scored task in common: there is nothing to pair.")
def _(place: Place) -> list[str]:
    place.results("a")
    place.results("b", task="other")
    return ["eval", "compare", "a", "b"]


@says("The picture can't be written to …")
def _(place: Place) -> list[str]:
    place.file("file")
    place.results("a")
    place.results("b")
    return ["eval", "compare", "a", "b", "picture=file/x.png"]


@says("… has no scored rollout: say tasks= and rate= instead.")
def _(place: Place) -> list[str]:
    place.results("a", passed=None)
    return ["eval", "power", "a", "difference=5"]
