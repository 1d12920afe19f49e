"""Messages of docs/troubleshooting.md: datasets and how they are fetched."""

import asyncio
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from harbor.models.task.id import PackageTaskId
from harbor.tasks.client import TaskClient

from producers import Place, said_by, says
from termrl.tasks.fetching import _download_packages
from termrl.tasks.records import DatasetRecord, FetchedTask, harbor_cache, write_record
from termrl.tasks.terminal_bench_1 import converted
from termrl.tasks.writing import written_directory

said_by("… is built in: there is nothing to fetch.", "tasks", "pull", "termrl/basics")
said_by("… is built in and cannot be removed.", "tasks", "remove", "termrl/basics")


def registry(place: Place, *names: str, tasks: tuple[dict[str, str], ...] = ()) -> str:
    """The path of a registry of datasets with the same tasks."""
    place.monkeypatch.setenv("HOME", str(place.path))
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    rows = [{"name": name, "version": "1", "description": "", "tasks": tasks} for name in names]
    return str(place.file("registry.json", json.dumps(rows)))


@says("… names no task.")
def _(place: Place) -> list[str]:
    return ["tasks", "list", str(place.file("list.txt", "# nothing\n"))]


@says("… is too big for a list of tasks.")
def _(place: Place) -> list[str]:
    with place.file("list.txt").open("wb") as file:
        file.truncate(2**31)
    return ["tasks", "list", "list.txt"]


@says("The dataset … has no tasks.")
def _(place: Place) -> list[str]:
    return ["tasks", "pull", f"{registry(place, 'a')}#a@1"]


def repository(place: Place) -> str:
    """The address of a git repository of what is in someone/tasks.git, which is no task of its own."""
    place.monkeypatch.setenv("HOME", str(place.path))
    place.file("someone/tasks.git/readme")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), (*identity, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *words], cwd=place.path / "someone/tasks.git", check=True)
    return f"file://{place.path}/someone/tasks.git"


@says("… has no tasks in its directory tasks, nor at its top: write …#DIRECTORY to say where they are.")
def _(place: Place) -> list[str]:
    return ["tasks", "pull", repository(place)]


@says("What arrived as …/… is not what its digest says: fetch it again.")
def _(place: Place) -> None:
    place.monkeypatch.setenv("HOME", str(place.path))
    task = PackageTaskId(org="a", name="b", ref="sha256:" + "0" * 64)

    class Damaging:
        async def download_tasks(self, tasks: object, output_dir: Path, **_: object) -> object:
            place.file(str((output_dir / "a/b" / ("0" * 64)).relative_to(place.path)))
            return SimpleNamespace(paths=[output_dir / "a/b" / ("0" * 64)])

    asyncio.run(_download_packages(cast(TaskClient, Damaging()), [task], lambda *_: None))


@says("What was fetched cannot be recorded in …: …")
def _(place: Place) -> None:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.file("file")))
    write_record(DatasetRecord("a", "b", "c", 0.0, ()))


@says("The built-in tasks cannot be written to …: …")
def _(place: Place) -> None:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.file("file")))
    written_directory("a", {"b": ("text", 0o644)})


@says("The converted task … cannot be written to …: …")
def _(place: Place) -> None:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.file("file")))
    place.file("old/run-tests.sh")
    converted(place.path / "old")


@says("… cannot be removed: …")
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv("HOME", str(place.path))
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    path = harbor_cache() / "hash" / "task"
    path.mkdir(parents=True)
    write_record(DatasetRecord("a@1", "b", "c", 0.0, (FetchedTask(str(path), 0, 0, ""),)))

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    place.monkeypatch.setattr("termrl.tasks.removal.shutil.rmtree", refuse)
    return ["tasks", "remove", "a@1"]


@says("…: there is no task directory …")
def _(place: Place) -> list[str]:
    return ["tasks", "list", str(place.file("list.txt", "nowhere\n"))]


said_by("There is no …: check the path.", "tasks", "pull", "nowhere.json")
said_by("… cannot be the name of a dataset: …", "tasks", "pull", "a b")
said_by(
    "… is not on this machine yet and … cannot be reached: …",
    *("tasks", "pull", "http://127.0.0.1:9/registry.json#a@1"),
)
said_by("There is no git repository at …: …", "tasks", "pull", "file:///nowhere/at-all.git")
said_by("… was not fetched, so there is nothing to remove: …", "tasks", "remove", "a@1")


@says("There is no dataset … in …")
def _(place: Place) -> list[str]:
    return ["tasks", "pull", f"{registry(place, 'a')}#b@1"]


@says("… has … datasets: write …#NAME for one of …")
def _(place: Place) -> list[str]:
    return ["tasks", "pull", registry(place, "a", "b")]


@says("… is not a registry: …")
def _(place: Place) -> list[str]:
    return ["tasks", "pull", str(place.file("registry.json", "{"))]


@says("… names a task that is not where it should be in …: …")
def _(place: Place) -> list[str]:
    return ["tasks", "pull", registry(place, "a", tasks=({"name": "gone", "path": "gone"},))]


@says("… has no such commit as … asks for: …")
def _(place: Place) -> list[str]:
    return ["tasks", "pull", f"{repository(place)}@{'0' * 40}"]


@says(
    "The cache no longer holds what was fetched of …, a task of …: … …; "
    "`termrl tasks pull …` fetches it again."
)
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    write_record(DatasetRecord("a@1", "b", "1", 0.0, (FetchedTask(str(place.path / "gone"), 1, 1, ""),)))
    return ["tasks", "list", "a@1"]


@says("… is not a list of tasks: it is not UTF-8 text.")
def _(place: Place) -> list[str]:
    place.file("list.txt").write_bytes(b"\xff")
    return ["tasks", "list", "list.txt"]


@says("…: … has no task …")
def _(place: Place) -> list[str]:
    return ["tasks", "list", str(place.file("list.txt", "dataset: termrl/basics:train\nnothing\n"))]


@says("None of the … tasks of … can be used; the first: …")
def _(place: Place) -> list[str]:
    (place.task() / "instruction.md").unlink()
    return ["tasks", "list", "tasks", "on_bad_task=skip"]


@says("… is the file of a task; name its directory, …")
def _(place: Place) -> list[str]:
    return ["tasks", "list", str(place.task() / "task.toml")]


@says("git could not fetch … from …: …")
def _(place: Place) -> list[str]:
    url = repository(place)
    place.command("git", "echo 'fatal: the index is odd' >&2; exit 1")
    return ["tasks", "pull", f"{url}@{'0' * 40}"]


@says("… comes from a git repository, and there is no git: install it.")
def _(place: Place) -> list[str]:
    url = repository(place)
    place.monkeypatch.setenv("PATH", str(place.path))
    return ["tasks", "pull", f"{url}@{'0' * 40}"]


@says("… has no branch or tag as … asks for; a commit takes all of its 40 digits.")
def _(place: Place) -> list[str]:
    return ["tasks", "pull", f"{repository(place)}@nothing"]


@says("… has a task with a link that cannot be followed within it: …")
def _(place: Place) -> list[str]:
    task = place.task("someone/tasks.git/tasks/one")
    (task / "link").symlink_to("../../../../outside")
    return ["tasks", "pull", repository(place)]


@says("… could not be fetched: …")
def _(place: Place) -> list[str]:
    place.task()
    source = registry(place, "a", tasks=({"name": "one", "path": "tasks/one"},))
    place.monkeypatch.setenv("HOME", str(place.file("file")))
    return ["tasks", "pull", source]


@says("… could not be fetched from …: …")
def _(place: Place) -> list[str]:
    url = place.open.enter_context(place.endpoint(200, {}, lost=9))
    return ["tasks", "pull", f"{url}/registry.json#a@1"]


@says("… answered … …: check the address.")
def _(place: Place) -> list[str]:
    url = place.open.enter_context(place.endpoint(404, {}))
    return ["tasks", "pull", f"{url}/registry.json#a@1"]
