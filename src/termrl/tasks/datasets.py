"""From a source to its tasks.

A source is the name of a built-in dataset, a directory (one task, or a tree of any depth), a list file, or
the name of a dataset that is fetched on first use; none means all that Harbor's cache holds. A directory that
has the name of a built-in dataset is addressed as ./name. Tasks come in the order of their paths, and no two
of them share a name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from termrl.tasks.builtin import BUILTIN_DATASETS, builtin_directory, canonical_builtin
from termrl.tasks.errors import (
    DuplicateTaskError,
    MissingTaskConfigError,
    NoTasksError,
    RegistryUnreachableError,
    TaskError,
    UnknownDatasetError,
    UnreadableTaskError,
)
from termrl.tasks.lists import read_list
from termrl.tasks.records import DatasetRecord, all_records, find_record, harbor_cache, require_whole
from termrl.tasks.references import PackageName, RegistryFile, RegistryName, read_reference
from termrl.tasks.task import HarborTask, load_harbor_task
from termrl.tasks.trees import FoundTask, Kind, find_tasks

if TYPE_CHECKING:
    from termrl.tasks.fetching import Told

type OnBadTask = Literal["error", "skip"]


@dataclass(frozen=True, slots=True)
class BadTask:
    """A task that was left out, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """The tasks of a source, and those of it that cannot be used."""

    source: str
    tasks: tuple[HarborTask, ...]
    skipped: tuple[BadTask, ...] = ()


def load_harbor_tasks(
    source: str | Path | None = None, *, on_bad_task: OnBadTask = "error", told: "Told | None" = None
) -> list[HarborTask]:
    """Load every task of a source; raises a `TaskError` if any cannot be used, unless they are skipped."""
    return list(load_dataset(source, on_bad_task=on_bad_task, told=told).tasks)


def load_dataset(
    source: str | Path | None = None, *, on_bad_task: OnBadTask = "error", told: "Told | None" = None
) -> Dataset:
    """Load every task of a source, with an account of those that were left out."""
    loading = _Loading(on_bad_task)
    name = str(source) if source is not None else str(harbor_cache())
    for place in _places(source, told or _say_nothing):
        loading.add(place)
    if not loading.tasks and not loading.skipped:
        raise NoTasksError(f"There is no task in {name}: no directory below it has a task.toml.")
    if not loading.tasks:
        first = loading.skipped[0]
        raise NoTasksError(
            f"None of the {len(loading.skipped)} tasks of {name} can be used; the first: {first.reason}"
        )
    return Dataset(name, tuple(loading.tasks.values()), tuple(loading.skipped))


class _Loading:
    """The tasks so far; what is wrong with one either stops everything or is written down."""

    def __init__(self, on_bad_task: OnBadTask) -> None:
        self._stops = on_bad_task == "error"
        self.tasks: dict[str, HarborTask] = {}
        self.skipped: list[BadTask] = []

    def add(self, place: "FoundTask | _Unusable") -> None:
        try:
            if isinstance(place, _Unusable):
                raise place.reason
            task = _load(place)
            if (other := self.tasks.setdefault(task.task_name, task)) is not task:
                raise DuplicateTaskError(
                    f"Two tasks are named {task.task_name}, {other.task_dir} and {task.task_dir}; "
                    "rename one of them, or name the dataset that is meant."
                )
        except TaskError as error:
            if self._stops:
                raise
            self.skipped.append(BadTask(place.path, str(error)))


@dataclass(frozen=True, slots=True)
class _Unusable:
    """A task that is known to be unusable before it is looked at."""

    path: Path
    reason: TaskError


def _load(found: FoundTask) -> HarborTask:
    if found.kind is Kind.WITHOUT_CONFIG:
        raise MissingTaskConfigError(f"{found.path} looks like a task but has no task.toml; add one.")
    if found.kind is Kind.TERMINAL_BENCH_1:
        from termrl.tasks.terminal_bench_1 import converted

        return load_harbor_task(converted(found.path))
    return load_harbor_task(found.path)


def _places(source: str | Path | None, told: "Told") -> Iterator[FoundTask | _Unusable]:
    if source is None:
        yield from _in_tree(harbor_cache())
        return
    builtin = canonical_builtin(str(source))
    if builtin is not None:
        yield from _in_tree(builtin_directory(builtin))
        return
    path = Path(source).expanduser()
    cached = harbor_cache() / str(source)
    if path.is_dir():
        yield from _in_tree(path)
    elif str(source).partition("#")[0].endswith(".json"):
        yield from _fetched(str(source), told)
    elif path.is_file():
        yield from _listed(path, told)
    elif isinstance(source, Path) or str(source).startswith(("./", "../", "/", "~")):
        raise _unknown(str(source))
    elif cached.is_dir() and str(source).strip("."):
        yield from _in_tree(cached)
    else:
        yield from _fetched(str(source), told)


def _in_tree(root: Path) -> Iterator[FoundTask]:
    try:
        yield from find_tasks(root)
    except OSError as error:
        raise UnreadableTaskError(f"{error.filename or root} cannot be read: {error.strerror}.") from error


def _listed(path: Path, told: "Told") -> Iterator[FoundTask | _Unusable]:
    if path.name == "task.toml":
        raise UnknownDatasetError(f"{path} is the file of a task; name its directory, {path.parent}.")
    datasets: dict[str, dict[str, HarborTask]] = {}
    for listed in read_list(path):
        where = f"{path}, line {listed.line}"
        if listed.dataset is None:
            directory = path.parent / Path(listed.name).expanduser()
            found = next(iter(_in_tree(directory)), None) if directory.is_dir() else None
            if found is None or found.path != directory:
                reason = UnknownDatasetError(f"{where}: there is no task directory {directory}.")
                yield _Unusable(directory, reason)
            else:
                yield found
            continue
        if listed.dataset not in datasets:
            tasks = load_dataset(listed.dataset, on_bad_task="skip", told=told).tasks
            datasets[listed.dataset] = {task.task_name: task for task in tasks}
        task = datasets[listed.dataset].get(listed.name)
        if task is None:
            close = get_close_matches(listed.name, datasets[listed.dataset], n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            reason = UnknownDatasetError(f"{where}: {listed.dataset} has no task {listed.name}{hint}.")
            yield _Unusable(Path(listed.name), reason)
        else:
            yield FoundTask(task.task_dir, Kind.HARBOR)


def _fetched(source: str, told: "Told") -> Iterator[FoundTask | _Unusable]:
    if source.startswith("termrl/"):
        raise _unknown(source)
    reference = read_reference(source)
    record = find_record(str(reference))
    if record is None:
        record = _fetch(source, told)
    elif isinstance(reference, RegistryFile) and not reference.is_url:
        # One's own registry is read every time: it is edited, and it is near.
        record = _fetch(source, told)
    yield from _recorded(record)


def _fetch(source: str, told: "Told") -> DatasetRecord:
    from termrl.tasks.fetching import fetch

    reference = read_reference(source)
    try:
        return fetch(reference, told)
    except (RegistryUnreachableError, UnknownDatasetError) as error:
        if isinstance(reference, RegistryName | PackageName):
            # Whoever meant a directory or a dataset at hand should hear of those too.
            raise type(error)(f"{error} {_looked_for(source)}") from error
        raise


def _recorded(record: DatasetRecord) -> Iterator[FoundTask | _Unusable]:
    for task in record.tasks:
        path = Path(task.path)
        try:
            require_whole(task, record.dataset)
        except TaskError as error:
            yield _Unusable(path, error)
        else:
            yield from _in_tree(path)


def _unknown(source: str) -> UnknownDatasetError:
    return UnknownDatasetError(f"There is no dataset {source!r}: {_looked_for(source)}")


def _looked_for(source: str) -> str:
    known = [*BUILTIN_DATASETS, *(record.dataset for record in all_records())]
    close = get_close_matches(source, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    directory = Path(source).expanduser().absolute()
    return f"{hint}There is no directory {directory} either, and what is here already is {', '.join(known)}."


def _say_nothing(what: str, done: int, total: int | None) -> None:
    pass
