"""Messages of docs/troubleshooting.md: sandboxes."""

import asyncio
import json
import sys
from types import SimpleNamespace
from typing import cast
from urllib.parse import urlsplit

from harbor.environments.base import BaseEnvironment

from producers import Place, said_by, says
from termrl.sandbox import preflight, tmux
from termrl.sandbox.backends import Backend, load_environment_class
from termrl.sandbox.factory import default_sandbox_factory, environment_arguments, factory_named
from termrl.sandbox.fitness import refuse_unfit
from termrl.sandbox.layers import LayerStore
from termrl.sandbox.local import LocalEnvironment
from termrl.sandbox.preflight import require_local
from termrl.sandbox.readiness import require_backend
from termrl.sandbox.references import mentions
from termrl.sandbox.registry import Registries
from termrl.sandbox.snapshotters import EngineSnapshots, snapshotter_for
from termrl.tasks.task import load_harbor_task


@says("there is no sandbox of type '…'; there are …")
def _(place: Place) -> None:
    from termrl.rollout.runner import RolloutRunner
    from termrl.rollout.settings import RolloutSettings

    settings = RolloutSettings("m", place.path, 1, 1, 100, environment="nothing")
    RolloutRunner(settings, None)  # type: ignore[arg-type]


@says("… is not a sandbox factory: it can't be called.")
def _(place: Place) -> None:
    factory_named("termrl:__version__")


@says("Task … asks for a TPU, and the local sandbox hands out none: …")
def _(place: Place) -> None:
    task = place.task()
    with (task / "task.toml").open("a") as file:
        file.write('[environment.tpu]\ntype = "v5e"\ntopology = "1x1"\n')
    arguments, _ = environment_arguments(task / "environment")
    LocalEnvironment(**arguments)


@says("The sandbox cache … can't be written (…): …")
def _(place: Place) -> None:
    LayerStore(place.file("file") / "layers", 0, True).open()


@says("The container of …")
def _(place: Place) -> None:
    class NoContainer(EngineSnapshots):
        async def _ask(self, *_: str) -> str:
            return ""

    environment = SimpleNamespace(session_id="a", environment_name="b")
    asyncio.run(NoContainer(Backend("docker")).take(cast(BaseEnvironment, environment), "key"))


@says("The sandbox layer … could not be kept in …")
def _(place: Place) -> None:
    place.file("layers/one")
    with LayerStore(place.path / "layers", 0, True).building("one"):
        pass


@says("The local sandbox has no mounts of type … (asked for at …): use type = bind.")
def _(place: Place) -> None:
    arguments, _ = environment_arguments(place.task() / "environment")
    LocalEnvironment(**arguments, mounts=[{"type": "volume", "source": "a", "target": "/a"}])


said_by("There is no environment_type '…': …", "eval", "environment_type=spaceship")
said_by("environment_type=… can't be imported: …", "eval", "environment_type=no.module:name")
said_by("… holds '…', which is not NAME=VALUE.", "eval", "environment_kwargs=x")
said_by(
    "sandbox_timeout is set, and … sandboxes have no lifetime of their own: …",
    *("eval", "environment_type=e2b", "sandbox_timeout=9"),
)
said_by(
    "base_images is set, and only environment_type=… looks images up there: leave it out.",
    *("eval", "environment_type=docker", "base_images=a=b"),
)
said_by(
    "There is no snapshot '…': `termrl snapshot list` shows what there is.", "snapshot", "destroy", "nothing"
)


@says("environment_type=… is not ready: …")
def _(place: Place) -> None:
    place.monkeypatch.setenv("PATH", str(place.path))
    require_backend(Backend("docker"))


@says("environment_type=… needs a client that is not installed: …")
def _(place: Place) -> None:
    place.monkeypatch.setitem(sys.modules, "harbor.environments.e2b", None)
    load_environment_class("e2b")


@says("environment_type=… has no snapshots: … have.")
def _(place: Place) -> None:
    snapshotter_for(Backend("e2b"))


def unfit(place: Place, toml: str, backend: Backend) -> None:
    task = place.task()
    (task / "task.toml").write_text(toml)
    (task / "tests" / "test.bat").touch()
    refuse_unfit([load_harbor_task(task)], backend)


@says("Task … asks for …, which the sandbox factory … does not say it honours: …")
def _(place: Place) -> None:
    unfit(place, "[environment]\ngpus = 1\n", Backend(factory=default_sandbox_factory))


@says("Task … changes its network between phases, which environment_type=… can't: …")
def _(place: Place) -> None:
    unfit(place, '[agent]\nnetwork_mode = "no-network"\n', Backend())


@says("Task … can't run with environment_type=…: …")
def _(place: Place) -> None:
    unfit(place, "", Backend(kwargs={"cpu_enforcement_policy": "sometimes"}))


@says("Task … asks for … GPU(s), and the local sandbox hands out none: …")
def _(place: Place) -> None:
    unfit(place, "[environment]\ngpus = 1\n", Backend())


@says("Task … is for Windows, which the local sandbox is not: …")
def _(place: Place) -> None:
    unfit(place, '[environment]\nos = "windows"\n', Backend())


@says("Task … asks for network_mode = allowlist, which the local sandbox can't enforce: …")
def _(place: Place) -> None:
    unfit(place, '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n', Backend())


@says("Task … has a docker-compose.yaml, which the local sandbox can't run: …")
def _(place: Place) -> None:
    place.file("tasks/one/environment/docker-compose.yaml")
    place.file("tasks/one/task.toml")
    LocalEnvironment(**environment_arguments(place.path / "tasks/one/environment")[0])


@says("Task … has no …: add one that begins with FROM …, or set docker_image.")
def _(place: Place) -> None:
    place.file("tasks/one/task.toml")
    LocalEnvironment(**environment_arguments(place.path / "tasks/one/environment")[0])


@says("… can't be read as a task.toml: …")
def _(place: Place) -> None:
    place.file("tasks/one/task.toml", "[")
    environment_arguments(place.path / "tasks/one/environment")


@says("… the user …, and an ordinary user has but one id to hand out: …")
def _(place: Place) -> None:
    place.file("tasks/one/task.toml")
    place.file("tasks/one/environment/Dockerfile", "FROM termrl/host\nUSER nobody\n")
    arguments, _ = environment_arguments(place.path / "tasks/one/environment")
    LocalEnvironment(**arguments)._refuse_other_owners()


@says("The local sandbox can't run on this host: … …: …")
def _(place: Place) -> None:
    place.monkeypatch.setattr(preflight, "find_tmux", lambda: tmux.find_tmux((), place.path))
    require_local()


def digest_at(place: Place, status: int, config: str = "{}") -> None:
    """Asks a registry that answers like this for an image, with what `docker login` left."""
    place.file("docker/config.json", config)
    place.monkeypatch.setenv("DOCKER_CONFIG", str(place.path / "docker"))
    with place.endpoint(status, {}) as address:
        asyncio.run(Registries().digest(f"{urlsplit(address).netloc}/image:1"))


@says("The registry … can't be asked which content … has now (…), so that a snapshot of it could be stale: …")
def _(place: Place) -> None:
    digest_at(place, 503)


@says("The registry … does not show … to …, so its content can't be told: …")
def _(place: Place) -> None:
    digest_at(place, 401)


@says("The registry … has no image …: look at its name and tag in task.toml or the Dockerfile.")
def _(place: Place) -> None:
    digest_at(place, 404)


@says("…, where `docker login` keeps credentials, can't be read: …")
def _(place: Place) -> None:
    digest_at(place, 200, "nonsense")


@says("… holds a login that can't be read (…): run `docker login` again.")
def _(place: Place) -> None:
    with place.endpoint(200, {}) as address:
        host = urlsplit(address).netloc
        place.file("docker/config.json", json.dumps({"auths": {host: {"auth": "nonsense!"}}}))
        place.monkeypatch.setenv("DOCKER_CONFIG", str(place.path / "docker"))
        asyncio.run(Registries().digest(f"{host}/image:1"))


@says("…, which keeps the login for …, does not answer (…): mend it or take it out of docker's config.json.")
def _(place: Place) -> None:
    place.command("docker-credential-safe", "echo nonsense")
    digest_at(place, 200, '{"credsStore": "safe"}')


@says("…: … has no value: give the ARG above it a default.")
def _(place: Place) -> None:
    mentions(place.file("Dockerfile", "ARG BASE\nFROM $BASE\n"))
