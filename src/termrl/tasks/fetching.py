"""Fetches datasets into Harbor's cache, with Harbor's own clients.

Every task arrives whole or not at all, and the record that makes a dataset usable offline is written after
the last one: a fetch that was broken off goes on where it stopped, and is never mistaken for the whole.
Everything that can go wrong comes out as a `TaskError` that says what to do.
"""

import asyncio
import json
import os
import shutil
import tempfile
import threading
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from harbor.constants import DEFAULT_REGISTRY_URL
from harbor.models.task.id import GitTaskId, LocalTaskId, PackageTaskId
from harbor.publisher.packager import Packager
from harbor.registry.client.base import BaseRegistryClient
from harbor.registry.client.git_repo import GitRepoRegistryClient, ResolvedRepo
from harbor.registry.client.json import JsonRegistryClient
from harbor.tasks.client import TaskClient, TaskDownloadResult

from termrl.tasks.errors import FetchError, MalformedRegistryError, TaskError, UnknownDatasetError
from termrl.tasks.faults import explained, unknown_name
from termrl.tasks.records import DatasetRecord, find_record, harbor_cache, new_record, write_record
from termrl.tasks.references import (
    GitTree,
    PackageName,
    Reference,
    RegistryFile,
    RegistryName,
    TerminalBench1Name,
)
from termrl.tasks.task import load_harbor_task
from termrl.tasks.trees import find_tasks

type TaskId = GitTaskId | LocalTaskId | PackageTaskId
type Told = Callable[[str, int, int | None], None]
"""Told what is being done, how many tasks are there, and of how many (None: not known yet)."""

REQUEST_SECONDS = 60
TERMINAL_BENCH_1_REGISTRY = DEFAULT_REGISTRY_URL.replace("/harbor/", "/terminal-bench/")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be downloaded; `trees` are directories of many tasks rather than tasks."""

    source: str
    version: str
    tasks: list[TaskId]
    trees: bool = False


def fetch(reference: Reference, told: Told) -> DatasetRecord:
    """Download a dataset, or what is missing of it, and record it; raises a `TaskError`."""
    return _in_a_loop_of_its_own(lambda: _fetch(reference, told))


async def _fetch(reference: Reference, told: Told) -> DatasetRecord:
    # git must fail rather than ask for a password that nobody is there to type.
    os.environ.setdefault("GIT_TERMINAL_PROMPT", "0")
    dataset = str(reference)
    told(f"looking up {dataset}", 0, None)
    plan = await _plan(reference)
    if not plan.tasks:
        raise FetchError(f"The dataset {dataset} has no tasks.")
    before = find_record(dataset)
    damaged = frozenset(before.missing) if before else frozenset()
    with explained(dataset, plan.source):
        paths = await _download(plan, damaged, told, dataset)
    owned = frozenset(
        path for path, task in zip(paths, plan.tasks, strict=True) if isinstance(task, LocalTaskId)
    )
    record = new_record(dataset, plan.source, plan.version, paths, owned)
    write_record(record)
    return record


async def _plan(reference: Reference) -> _Plan:
    match reference:
        case RegistryName():
            from harbor.registry.client.harbor.harbor import HarborRegistryClient

            return await _named(HarborRegistryClient(), str(reference), str(reference), "Harbor's registry")
        case PackageName():
            from harbor.registry.client.package import PackageDatasetClient

            hub = PackageDatasetClient()  # type: ignore[no-untyped-call]
            return await _named(hub, str(reference), str(reference), "Harbor's hub")
        case RegistryFile():
            return await _in_registry_file(reference)
        case GitTree():
            return await _in_git_tree(reference)
        case TerminalBench1Name():
            return _terminal_bench_1(reference)


async def _named(client: BaseRegistryClient, name: str, dataset: str, source: str) -> _Plan:
    try:
        with explained(dataset, source):
            metadata = await client.get_dataset_metadata(name)
    except UnknownDatasetError:
        known: list[str] = []
        with suppress(Exception):  # Only what to suggest is at stake.
            known = [f"{found.name}@{found.version}" for found in await client.list_datasets()]
        raise unknown_name(name, source, known) from None
    return _Plan(source, metadata.version or "", list(metadata.task_ids))


async def _in_registry_file(reference: RegistryFile) -> _Plan:
    rows = _registry_rows(reference.registry)
    names = [f"{row.get('name')}@{row.get('version')}" for row in rows if isinstance(row, dict)]
    if reference.name is None and len(names) != 1:
        raise UnknownDatasetError(
            f"{reference.registry} has {len(names)} datasets: write {reference.registry}#NAME for one of "
            f"{', '.join(names[:10]) or 'none'}."
        )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "registry.json")
        path.write_text(json.dumps(rows))
        try:
            client = JsonRegistryClient(path=path)
        except ValueError as error:
            raise _malformed(reference.registry, "its rows are not datasets as Harbor writes them") from error
        plan = await _named(client, reference.name or names[0], str(reference), reference.registry)
    if reference.is_url:
        return plan
    beside = Path(reference.registry).expanduser().resolve().parent
    tasks = [
        LocalTaskId(path=beside / task.path) if isinstance(task, LocalTaskId) else task for task in plan.tasks
    ]
    return _Plan(plan.source, plan.version, tasks)


async def _in_git_tree(reference: GitTree) -> _Plan:
    """The tasks directly below the directory or, where there are none, the directory with all it holds."""
    path = urlsplit(reference.url).path if "://" in reference.url else reference.url.partition(":")[2]
    words = ["", *path.strip("/").removesuffix(".git").split("/")]
    repository = ResolvedRepo(
        host=urlsplit(reference.url).hostname or "",
        org=words[-2],
        name=words[-1],
        git_url=reference.url,
        ref=reference.ref,
        resolved_sha=reference.ref if _is_commit(reference.ref) else None,
    )
    places = [reference.directory] if reference.directory else ["tasks", "."]
    commit = ""
    for place in places:
        client = GitRepoRegistryClient(repository, path=Path(place))
        with explained(str(reference), reference.url):
            commit = await client._get_resolved_sha()
            try:
                metadata = await client.get_dataset_metadata("")
            except ValueError:
                continue  # Harbor finds no task there; another place may have some.
            return _Plan(reference.url, commit, list(metadata.task_ids))
    if reference.directory is None:
        raise FetchError(
            f"{reference.url} has no tasks in its directory tasks, nor at its top: "
            f"write {reference.url}#DIRECTORY to say where they are."
        )
    whole = GitTaskId(git_url=reference.url, git_commit_id=commit, path=Path(reference.directory))
    return _Plan(reference.url, commit, [whole], trees=True)


def _terminal_bench_1(reference: TerminalBench1Name) -> _Plan:
    registry = reference.registry or TERMINAL_BENCH_1_REGISTRY
    rows = _registry_rows(registry)
    try:
        known = {f"{row['name']}=={row['version']}": row for row in rows}
        row = known.get(f"{reference.name}=={reference.version}")
        if row is None:
            raise unknown_name(f"{reference.name}=={reference.version}", registry, list(known))
        url, commit = str(row["github_url"]), row.get("commit_hash") or "head"
        directory = Path(str(row["dataset_path"]))
        subset = row.get("task_id_subset")
    except (KeyError, TypeError) as error:
        raise _malformed(registry, "its rows are not datasets of Terminal-Bench 1") from error
    pinned = None if commit == "head" else str(commit)
    if subset:
        tasks: list[TaskId] = [
            GitTaskId(git_url=url, git_commit_id=pinned, path=directory / str(name)) for name in subset
        ]
        return _Plan(registry, reference.version, tasks, trees=True)
    whole = GitTaskId(git_url=url, git_commit_id=pinned, path=directory)
    return _Plan(registry, reference.version, [whole], trees=True)


def _registry_rows(registry: str) -> list[Any]:
    with explained(registry, registry):
        if registry.startswith(("http://", "https://")):
            with urllib.request.urlopen(registry, timeout=REQUEST_SECONDS) as answer:
                text = answer.read()
        else:
            text = Path(registry).expanduser().read_bytes()
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise _malformed(registry, "it is not JSON") from error
    if not isinstance(rows, list):
        raise _malformed(registry, "it is not a list of datasets")
    return rows


async def _download(plan: _Plan, damaged: frozenset[str], told: Told, dataset: str) -> list[Path]:
    packages = [task for task in plan.tasks if isinstance(task, PackageTaskId)]
    others = [task for task in plan.tasks if not isinstance(task, PackageTaskId)]
    count, total = 0, None if plan.trees else len(plan.tasks)

    def arrived(task: TaskId, result: TaskDownloadResult) -> None:
        nonlocal count
        count += 1
        told(f"fetching {dataset}", count, total)

    told(f"fetching {dataset}", 0, total)
    found: dict[TaskId, Path] = {}
    client = TaskClient()
    harbor_cache().mkdir(parents=True, exist_ok=True)
    result = await client.download_tasks(
        list(others), output_dir=harbor_cache(), on_task_download_complete=arrived
    )
    again: list[TaskId] = []
    for task, download in zip(others, result.results, strict=True):
        found[task] = download.path
        trusted = isinstance(task, LocalTaskId) or not download.cached
        if not trusted and (str(download.path) in damaged or not _is_whole(download.path, plan.trees)):
            again.append(task)
    if again:
        told(f"{len(again)} of the cache's entries were not whole: fetching them again", count, total)
        await client.download_tasks(again, overwrite=True, output_dir=harbor_cache())
    if packages:
        found.update(await _download_packages(client, packages, arrived))
    return [found[task] for task in plan.tasks]


async def _download_packages(
    client: TaskClient, packages: list[PackageTaskId], arrived: Callable[[TaskId, TaskDownloadResult], None]
) -> dict[TaskId, Path]:
    """Unpacked beside the cache and moved into it: Harbor itself unpacks in place."""
    root = harbor_cache() / "packages"
    root.mkdir(parents=True, exist_ok=True)
    found: dict[TaskId, Path] = {}
    for task in packages:
        path = root / task.org / task.name / (task.ref or "").removeprefix("sha256:")
        if path.is_dir() and _is_package(path):
            found[task] = path
    absent = [task for task in packages if task not in found]
    staging = Path(tempfile.mkdtemp(prefix=".fetching-", dir=root))
    try:
        result = await client.download_tasks(
            list(absent), output_dir=staging, on_task_download_complete=arrived
        )
        for task, path in zip(absent, result.paths, strict=True):
            if not _is_package(path):
                raise FetchError(
                    f"What arrived as {task.org}/{task.name} is not what its digest says: fetch it again."
                )
            place = root / path.relative_to(staging)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            path.rename(place)
            found[task] = place
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return found


def _is_package(path: Path) -> bool:
    """Whether a package in the cache is what its directory's name, the digest of its content, says."""
    try:
        digest, _ = Packager.compute_content_hash(path)
    except (OSError, ValueError):
        return False
    return bool(digest == path.name)


def _is_whole(path: Path, trees: bool) -> bool:
    if trees:
        return any(True for _ in find_tasks(path))
    try:
        load_harbor_task(path)
    except TaskError:
        return False
    return True


def _is_commit(ref: str | None) -> bool:
    return ref is not None and len(ref) == 40 and all(digit in "0123456789abcdef" for digit in ref.lower())


def _malformed(registry: str, why: str) -> MalformedRegistryError:
    return MalformedRegistryError(f"{registry} is not a registry: {why}.")


def _in_a_loop_of_its_own[T](work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` to its end, also for a caller that is itself inside a running loop."""
    results: list[T] = []
    failures: list[BaseException] = []

    async def whole() -> T:
        return await work()

    def run() -> None:
        try:
            results.append(asyncio.run(whole()))
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run, name="fetching", daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
