"""Makes the snapshots of many tasks, and finds for a run which of its tasks have one.

Tasks with the same content share a snapshot. Each record is written as its build ends; one that fails is
reported by task with the end of its log and stops no other; the same call again builds only what is missing.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox.backends import Backend
from termrl.sandbox.fitness import Task
from termrl.sandbox.logins import LoginUnreadable
from termrl.sandbox.registry import DigestUnknown
from termrl.sandbox.snapshots import Snapshot, SnapshotStore, content_key
from termrl.sandbox.snapshotters import SNAPSHOTTERS, Prepare, Snapshotter, snapshotter_for

_LOG_TAIL = 2000


@dataclass(frozen=True)
class Built:
    """What became of one task. `state` is built, shared, there or failed; `detail` is the end of its log."""

    task_name: str
    state: str
    key: str = ""
    seconds: float = 0.0
    detail: str = ""


@dataclass(frozen=True)
class AgentTools:
    """What is installed for the agent: `key` names it, `prepare` does it."""

    key: str = ""
    prepare: Prepare | None = None


async def freeze(
    tasks: Sequence[Task],
    backend: Backend,
    *,
    tools: AgentTools | None = None,
    workers: int = 4,
    ttl_hours: float | None = None,
    store: SnapshotStore | None = None,
    done: Callable[[Built], None] = lambda built: None,
) -> list[Built]:
    """A snapshot for every task that has none; gives what became of each, in the tasks' order."""
    tools = tools or AgentTools()
    records = store or SnapshotStore()
    snapshotter = snapshotter_for(backend)
    places = asyncio.Semaphore(workers)
    locks: dict[str, asyncio.Lock] = {}
    results: dict[int, Built] = {}

    async def one(place: int, task: Task) -> None:
        async with places:
            results[place] = await _freeze_one(task, snapshotter, tools, ttl_hours, records, locks)
        done(results[place])

    async with asyncio.TaskGroup() as group:
        for place, task in enumerate(tasks):
            group.create_task(one(place, task))
    return [results[place] for place in range(len(tasks))]


async def _freeze_one(
    task: Task,
    snapshotter: Snapshotter,
    tools: AgentTools,
    ttl_hours: float | None,
    records: SnapshotStore,
    locks: dict[str, asyncio.Lock],
) -> Built:
    began = time.monotonic()
    backend = snapshotter.backend.environment_type
    key = ""
    try:
        key = await key_of(task, snapshotter, tools.key)
        async with locks.setdefault(key, asyncio.Lock()):
            there = records.get(backend, key)
            if there is not None and not there.expired and await snapshotter.exists(there.handle):
                state = "there"
                if task.task_name not in there.tasks:
                    records.put(replace(there, tasks=(*there.tasks, task.task_name)))
                    state = "shared"
                return Built(task.task_name, state, key, time.monotonic() - began)
            if there is not None:
                await snapshotter.destroy(there.handle)
            handle, size = await _build(task, snapshotter, tools, key)
            seconds = time.monotonic() - began
            expires = None if ttl_hours is None else time.time() + ttl_hours * 3600
            names = (task.task_name,)
            records.put(Snapshot(key, backend, handle, tools.key, time.time(), expires, seconds, names, size))
            return Built(task.task_name, "built", key, seconds)
    except Exception as error:  # a build may end in any way; the others stand
        detail = f"{type(error).__name__}: {error}"[-_LOG_TAIL:]
        return Built(task.task_name, "failed", key, time.monotonic() - began, detail)


async def key_of(task: Task, snapshotter: Snapshotter, agent: str) -> str:
    environment_dir = task.task_dir / "environment"
    image = await snapshotter.image(environment_dir, task.config)
    return content_key(snapshotter.backend.environment_type, agent, image, environment_dir)


async def _build(task: Task, snapshotter: Snapshotter, tools: AgentTools, key: str) -> tuple[str, int | None]:
    with TemporaryDirectory(prefix="termrl-snapshot-") as folder:
        environment = await _environment(task, snapshotter, key, Path(folder))
        limit = task.config.environment.build_timeout_sec
        try:
            await asyncio.wait_for(environment.start(force_build=False), limit)
            if tools.prepare is not None:
                await tools.prepare(environment)
            return await snapshotter.take(environment, key)
        finally:
            await environment.stop(delete=True)


async def _environment(task: Task, snapshotter: Snapshotter, key: str, folder: Path) -> BaseEnvironment:
    config = task.config.model_copy(deep=True)
    source = await snapshotter.source(task.task_dir / "environment", config, folder / "source")
    paths = TrialPaths(folder / "trial")
    paths.mkdir()  # type: ignore[no-untyped-call]
    backend = replace(snapshotter.backend, kwargs={**snapshotter.backend.kwargs, **snapshotter.options(key)})
    # Agents install their tools from the network; what the task allows is the rollouts' business.
    return EnvironmentFactory.create_environment_from_config(
        config=backend.environment_config(config),
        environment_dir=source,
        environment_name=task.task_name.rpartition("/")[2],
        session_id=f"snapshot-{key[:12]}-{uuid.uuid4().hex[:8]}",
        trial_paths=paths,
        task_env_config=config.environment,
    )


async def synchronize(backend: Backend, store: SnapshotStore | None = None) -> tuple[list[str], list[str]]:
    """Records and snapshots brought into step; gives the records dropped and the snapshots removed.

    A record whose snapshot is gone is dropped; a snapshot that is expired, or that no record knows, goes.
    """
    records = store or SnapshotStore()
    snapshotter = snapshotter_for(backend)
    dropped, removed = [], []
    for record in records.all(backend.environment_type):
        there = await snapshotter.exists(record.handle)
        if there and record.expired:
            await snapshotter.destroy(record.handle)
            removed.append(record.handle)
        if not there or record.expired:
            records.remove(record)
            dropped.append(record.key)
    known = {record.handle for record in records.all(backend.environment_type)}
    for handle in await snapshotter.handles():
        if handle not in known:
            await snapshotter.destroy(handle)
            removed.append(handle)
    return dropped, removed


@dataclass(frozen=True)
class Found:
    """Which tasks start from a snapshot: `handles` by environment directory, the rest are missed by name.

    `unknown` says why it can't be told for some of those whether what there is is still their content.
    """

    handles: dict[str, str]
    hits: tuple[str, ...]
    misses: tuple[str, ...]
    unknown: tuple[str, ...] = ()


async def find_snapshots(
    tasks: Sequence[Task], backend: Backend, agent: str, store: SnapshotStore | None = None
) -> Found:
    """The snapshots that these tasks can start from now."""
    records = store or SnapshotStore()
    if backend.factory is not None or backend.environment_type not in SNAPSHOTTERS:
        return Found({}, (), ())
    if not records.all(backend.environment_type):
        return Found({}, (), tuple(task.task_name for task in tasks))
    snapshotter = snapshotter_for(backend)
    handles: dict[str, str] = {}
    hits, misses, unknown = [], [], []
    keys = await asyncio.gather(*(key_of(task, snapshotter, agent) for task in tasks), return_exceptions=True)
    for task, key in zip(tasks, keys, strict=True):
        if isinstance(key, DigestUnknown | LoginUnreadable):
            misses.append(task.task_name)
            unknown.append(str(key))
            continue
        if isinstance(key, BaseException):
            raise key
        record = records.get(backend.environment_type, key)
        if record is not None and not record.expired and await snapshotter.exists(record.handle):
            handles[str((task.task_dir / "environment").resolve())] = record.handle
            hits.append(task.task_name)
        else:
            misses.append(task.task_name)
    return Found(handles, tuple(hits), tuple(misses), tuple(dict.fromkeys(unknown)))
