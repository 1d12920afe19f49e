"""Messages of docs/troubleshooting.md: tasks, whole and broken."""

import json
import os
import shutil

from producers import Place, said_by, says
from termrl.config import EvalConfig
from termrl.tasks.quarantine import read_quarantine
from termrl.tasks.scaffold import write_new_task
from termrl.tasks.task import load_harbor_task, validate_task_dir
from termrl.tasks.terminal_bench_1 import converted

said_by("There is no dataset '…'…: …", "eval", "dataset=termrl/nothing")
said_by("task_indices asks for task …, and the dataset has …: …", "eval", "task_indices=999")
said_by("task_indices has '…', which is not a place or a range such as 3-5.", "eval", "task_indices=x")
said_by("task_indices has '…', a range from high to low.", "eval", "task_indices=5-3")
said_by("The dataset has no task '…': …", "eval", "task_ids=nothing")


@says("There is no task in …: no directory below it has a task.toml.")
def _(place: Place) -> list[str]:
    place.file("tasks/readme")
    return ["eval", "dataset=tasks"]


@says("The task … has no …, so nothing can grade it; …")
def _(place: Place) -> list[str]:
    shutil.rmtree(place.task() / "tests")
    return ["eval", "dataset=tasks"]


@says("… is not valid TOML: …")
def _(place: Place) -> list[str]:
    (place.task() / "task.toml").write_text("[agent\n")
    return ["eval", "dataset=tasks"]


@says("Two tasks are named …")
def _(place: Place) -> list[str]:
    for name in ("a", "b"):
        task = place.task(f"tasks/{name}")
        text = (task / "task.toml").read_text()
        if "[task]" not in text:
            (task / "task.toml").write_text(f'{text}\n[task]\nname = "test/same"\n')
    return ["eval", "dataset=tasks"]


@says("The dataset … is not what it was when this evaluation began: …")
def _(place: Place) -> list[str]:
    place.task()
    place.evaluation(EvalConfig(dataset="tasks", run_name="e"))
    return ["eval", "run_name=e"]


@says("… tasks cannot be split with holdout=…: one side would have none.")
def _(place: Place) -> list[str]:
    place.task()
    return ["tasks", "split", "tasks"]


@says("The lists cannot be written to …: …")
def _(place: Place) -> list[str]:
    place.file("file")
    return ["tasks", "split", "termrl/basics:train", "output_path=file/out"]


@says("… is there already: choose another name.")
def _(place: Place) -> list[str]:
    place.file("one/x")
    return ["tasks", "new", "one"]


@says("… cannot be read: …")
def _(place: Place) -> None:
    read_quarantine(place.path / "nothing.json")


@says("… has no task.toml, so it is not a Harbor task.")
def _(place: Place) -> None:
    load_harbor_task(place.path)


@says("The task … has no …; add one that tells the agent what to do.")
def _(place: Place) -> list[str]:
    (place.task() / "instruction.md").unlink()
    return ["eval", "dataset=tasks"]


@says("The task cannot be written to …: …")
def _(place: Place) -> None:
    write_new_task("one", place.file("file") / "tasks")


@says("The Terminal-Bench 1 task … has its tests read by …, which is not known here; only pytest is.")
def _(place: Place) -> list[str]:
    for name, text in (("task.yaml", "parser_name: swebench\n"), ("run-tests.sh", "")):
        place.file(f"tasks/old/{name}", text)
    place.file("tasks/old/docker-compose.yaml", "services: {}\n")
    return ["tasks", "list", "tasks"]


said_by(
    "holdout is …: it is a share, so between 0 and 1.", "tasks", "split", "termrl/basics:train", "holdout=2"
)
said_by("… cannot be the name of a task: …", "tasks", "new", "a b")


@says("… is not UTF-8 text: …")
def _(place: Place) -> list[str]:
    (place.task() / "instruction.md").write_bytes(b"\xff")
    return ["tasks", "list", "tasks"]


@says("… looks like a task but has no task.toml; add one.")
def _(place: Place) -> list[str]:
    (place.task() / "task.toml").unlink()
    return ["tasks", "list", "tasks"]


@says("Harbor refuses the task …: …")
def _(place: Place) -> None:
    task = place.task()
    (task / "tests" / "loop").symlink_to("loop")
    validate_task_dir(task)


@says("The task … does not say what its sandbox starts from: …")
def _(place: Place) -> list[str]:
    shutil.rmtree(place.task() / "environment")
    return ["tasks", "list", "tasks"]


@says("In the task … the link … leads out of it, to …; …")
def _(place: Place) -> list[str]:
    (place.task() / "link").symlink_to("/etc/hostname")
    return ["tasks", "list", "tasks"]


@says(
    "The task … has a file of … GB, …; at most … MB are carried into a sandbox: fetch it in the Dockerfile."
)
def _(place: Place) -> list[str]:
    (place.task() / "big").touch()
    os.truncate(place.path / "tasks/one/big", 2**30)
    return ["tasks", "list", "tasks"]


@says("All … tasks are in quarantine by …: …")
def _(place: Place) -> list[str]:
    name = load_harbor_task(place.task()).task_name
    row = {"verdict": "broken", "reason": "it is"}
    quarantine = place.file("unfit.json", json.dumps({"tasks": {name: row}}))
    return ["eval", "dataset=tasks", f"quarantine={quarantine}"]


@says("… is not a quarantine file: …")
def _(place: Place) -> list[str]:
    return ["eval", f"quarantine={place.file('unfit.json', '{}')}"]


def old_task(place: Place, **files: str) -> list[str]:
    """A task of Terminal-Bench 1."""
    for name, text in {"docker-compose.yaml": "services: {}\n", "task.yaml": "a: 1\n", **files}.items():
        place.file(f"tasks/old/{name}", text)
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    return ["tasks", "list", "tasks"]


@says("The Terminal-Bench 1 task … has no run-tests.sh, so nothing can grade it.")
def _(place: Place) -> None:
    old_task(place)
    converted(place.path / "tasks/old")


@says("… is not valid YAML: …")
def _(place: Place) -> list[str]:
    return old_task(place, **{"run-tests.sh": "", "task.yaml": "[a"})


@says("… is not a table of settings.")
def _(place: Place) -> list[str]:
    return old_task(place, **{"run-tests.sh": "", "task.yaml": "a"})
