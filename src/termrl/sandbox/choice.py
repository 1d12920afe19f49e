"""From a run's settings to its backend: chosen, checked, fit for every task, nothing left over in its way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, Protocol

from termrl.sandbox.backends import LOCAL, Backend, BadEnvironmentSetting, parse_pairs
from termrl.sandbox.fitness import Task, refuse_unfit
from termrl.sandbox.freezing import find_snapshots
from termrl.sandbox.interface import SandboxFactory
from termrl.sandbox.leftovers import ENGINES, reap
from termrl.sandbox.lifetime import lifetime_seconds
from termrl.sandbox.readiness import require_backend
from termrl.sandbox.snapshots import SnapshotStore, hand_over


class SandboxSettings(Protocol):
    """The settings that say where sandboxes run."""

    @property
    def environment_type(self) -> str: ...

    @property
    def environment_kwargs(self) -> tuple[str, ...] | None: ...

    @property
    def base_images(self) -> tuple[str, ...] | None: ...

    @property
    def sandbox_timeout(self) -> int | None: ...


def choose_backend(settings: SandboxSettings, factory: SandboxFactory | None = None) -> Backend:
    """The backend of these settings; raises where a setting would be ignored or means nothing."""
    kwargs: dict[str, Any] = parse_pairs(settings.environment_kwargs, "environment_kwargs", as_json=True)
    images = parse_pairs(settings.base_images, "base_images", as_json=False)
    if images:
        if settings.environment_type != LOCAL or factory is not None:
            raise BadEnvironmentSetting(
                f"base_images is set, and only environment_type={LOCAL} looks images up there: leave it out."
            )
        kwargs["base_images"] = images
    backend = Backend(settings.environment_type, kwargs, settings.sandbox_timeout, factory=factory)
    backend.check()
    return backend


def make_ready(backend: Backend, tasks: Sequence[Task]) -> None:
    """Refuses what could not work, then removes what dead runs left on this host."""
    require_backend(backend)
    refuse_unfit(tasks, backend)
    reap(engines=tuple(name for name in ENGINES if name == backend.environment_type))


async def start_from_snapshots(
    backend: Backend, tasks: Sequence[Task], agent: str, say: Callable[[str], None]
) -> Backend:
    """The backend told of the snapshots that these tasks have; says hit or miss for each where there are any.

    `agent` names what is installed for it, as `AgentTools.key` does.
    """
    found = await find_snapshots(tasks, backend, agent)
    for reason in found.unknown:
        say(f"no snapshot is used where this is so: {reason}")
    if not found.hits:
        if found.misses and SnapshotStore().all(backend.environment_type):
            say(f"snapshots: all {len(found.misses)} tasks miss; `termrl snapshot create` builds them")
        return backend
    for name in found.hits:
        say(f"snapshot hit: {name}")
    for name in found.misses:
        say(f"snapshot miss: {name}")
    return replace(backend, kwargs={**backend.kwargs, "snapshots": hand_over(found.handles)})


def environment_settings(
    backend: Backend, tasks: Sequence[Task], *, timeout_multiplier: float = 1.0
) -> Mapping[str, Any]:
    """What the rollouts' settings say of it: how Harbor is told, long-lived enough for every task."""
    lifetimes = (lifetime_seconds(task.config, backend.agent_timeout) for task in tasks)
    longest = max((ceil(timeout_multiplier * lifetime) for lifetime in lifetimes), default=None)
    config = backend.environment_config(lifetime=longest)
    kind = config.import_path or (config.type.value if config.type is not None else LOCAL)
    return {"environment": kind, "environment_settings": tuple(config.kwargs.items())}
