"""Harbor's Docker environment against a real engine, with images built here: part of `make test-all`."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import EnvironmentFactory
from harbor.models.trial.paths import TrialPaths

import docker_engine
from termrl.sandbox.backends import Backend
from termrl.sandbox.errors import SandboxLost
from termrl.sandbox.freezing import AgentTools, find_snapshots, freeze, synchronize
from termrl.sandbox.images import ImageStore
from termrl.sandbox.keeper.boot import privileged, root_id
from termrl.sandbox.labels import EXPIRES, OWNER, RUN, labelled_run
from termrl.sandbox.layers import LayerStore
from termrl.sandbox.leftovers import find, reap
from termrl.sandbox.lifetime import task_config_beside
from termrl.sandbox.readiness import check_backend, require_backend
from termrl.sandbox.registry import DigestUnknown, Registries
from termrl.sandbox.snapshots import SnapshotStore, hand_over
from termrl.tasks.task import HarborTask, load_harbor_task

pytestmark = pytest.mark.docker
Make = Callable[..., BaseEnvironment]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    made: str = docker_engine.make_image(tmp_path_factory.mktemp("image"), "tmux")
    return made


@pytest.fixture
def make(tmp_path: Path, image: str) -> Make:
    made = iter(range(1000))

    def environment(toml: str = "", files: dict[str, str] | None = None, **options: Any) -> BaseEnvironment:
        task = tmp_path / f"task-{next(made)}"
        (task / "environment").mkdir(parents=True)
        (task / "task.toml").write_text(toml)
        for name, text in (files or {"Dockerfile": f"FROM {image}\n"}).items():
            (task / "environment" / name).write_text(text)
        config = task_config_beside(task / "environment")
        paths = TrialPaths(task / "trial")
        paths.mkdir()
        baseline = config.environment.resolve_baseline()
        return EnvironmentFactory.create_environment_from_config(
            config=Backend("docker", **options).environment_config(config),
            environment_dir=task / "environment",
            environment_name=task.name,
            session_id=f"{task.name}-{os.getpid()}__env",
            trial_paths=paths,
            task_env_config=config.environment,
            network_policy=baseline,
            phase_network_policies=[baseline],
        )

    return environment


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = docker_engine.everything()
    yield
    assert docker_engine.everything() == before


def main_container(environment: BaseEnvironment) -> dict[str, Any]:
    project = environment.session_id.lower().replace("__", "__")
    name = docker_engine.docker(
        "ps", "-q", "--filter", f"label=com.docker.compose.project={project}"
    ).split()[0]
    found: dict[str, Any] = docker_engine.inspect("container", name)
    return found


def test_the_engine_is_ready_and_says_so() -> None:
    check = check_backend("docker")
    assert (check.ok, check.detail) == (True, "ready")
    require_backend(Backend("docker"))


async def test_a_dockerfile_task_is_built_and_its_limits_and_labels_hold(make: Make, image: str) -> None:
    environment = make(
        '[environment]\ncpus = 1\nmemory_mb = 64\nworkdir = "/work"\nenv = { TASK = "yes" }\n',
        {
            "Dockerfile": f"FROM {image}\nENV A=1\nCOPY data /data\nRUN mkdir /work && echo built > /built\n",
            "data": "d",
        },
    )
    with labelled_run("docker run"):
        await environment.start(force_build=False)
    try:
        result = await environment.exec("echo $FROM_IMAGE $A $TASK; pwd; cat /built /data", timeout_sec=60)
        assert result.stdout == "yes 1 yes\n/work\nbuilt\nd"
        container = main_container(environment)
        assert container["HostConfig"]["NanoCpus"] == 10**9
        assert container["HostConfig"]["Memory"] == 64 << 20
        labels = container["Config"]["Labels"]
        assert labels[RUN] == "docker-run"
        assert labels[OWNER].startswith(f"{os.getpid()}-")
        assert int(labels[EXPIRES]) > time.time() + 600
        (network,) = container["NetworkSettings"]["Networks"]
        assert docker_engine.inspect("network", network)["Labels"][RUN] == "docker-run"
        kinds = {each.kind for each in find(engines=("docker",)) if each.label.run == "docker-run"}
        assert {"container", "network"} <= kinds
        assert not any(each.left_over for each in find(engines=("docker",)) if each.backend == "docker")
    finally:
        await environment.stop(delete=True)


async def test_a_compose_task_has_all_its_services_and_all_of_them_are_labelled(
    make: Make, image: str
) -> None:
    compose = (
        f"services:\n  main:\n    volumes: ['shared:/shared']\n  helper:\n    image: {image}\n"
        "    command: ['sh', '-c', 'echo from-helper > /shared/said; sleep 600']\n"
        "    volumes: ['shared:/shared']\nvolumes:\n  shared:\n"
    )
    environment = make("", {"Dockerfile": f"FROM {image}\n", "docker-compose.yaml": compose})
    with labelled_run("composed"):
        await environment.start(force_build=False)
    try:
        said = await environment.exec(
            "until [ -s /shared/said ]; do sleep 0.1; done; cat /shared/said", timeout_sec=60
        )
        assert said.stdout == "from-helper\n"
        ours = [each.kind for each in find(engines=("docker",)) if each.label.run == "composed"]
        assert sorted(ours) == ["container", "container", "network", "volume"]
    finally:
        await environment.stop(delete=True)


async def test_a_task_without_network_has_none(make: Make) -> None:
    environment = make('[environment]\nnetwork_mode = "no-network"\n')
    await environment.start(force_build=False)
    try:
        devices = await environment.exec(
            "cut -d: -f1 /proc/net/dev | tail -n +3; cat /proc/net/route", timeout_sec=60
        )
        assert (devices.stdout or "").split()[0] == "lo"
        assert "eth" not in (devices.stdout or "")
        assert main_container(environment)["HostConfig"]["NetworkMode"] == "none"
    finally:
        await environment.stop(delete=True)


async def test_a_container_ends_by_itself_when_its_lifetime_is_over(make: Make) -> None:
    environment = make("", sandbox_timeout=2)
    await environment.start(force_build=False)
    try:
        name = main_container(environment)["Id"]
        deadline = time.monotonic() + 30
        while docker_engine.inspect("container", name)["State"]["Running"]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        with pytest.raises(SandboxLost):
            await environment.exec("true")
    finally:
        await environment.stop(delete=True)


def test_what_a_killed_run_left_is_reaped_and_nothing_else(image: str, tmp_path: Path) -> None:
    bystander = docker_engine.docker("run", "-d", "--label", "someone=else", image, "sleep", "600")
    living = subprocess.Popen(["sleep", "600"])
    try:
        script = Path(__file__).with_name("docker_run_to_kill.py")
        run = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), image],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        left = [each for each in find(engines=("docker",)) if each.left_over and each.backend == "docker"]
        assert sorted(each.kind for each in left) == ["container"] * 2 + ["network"] * 2 + ["volume"]
        assert {each.label.run for each in left} == {"to-be-killed"}
        reap(engines=("docker",))
        assert not [each for each in find(engines=("docker",)) if each.left_over and each.backend == "docker"]
        assert docker_engine.inspect("container", bystander)["State"]["Running"]
    finally:
        living.kill()
        living.wait()
        docker_engine.docker("rm", "-f", bystander)


def write_task(folder: Path, dockerfile: str) -> HarborTask:
    files = {"task.toml": "", "instruction.md": "x\n", "tests/test.sh": "true\n"}
    for path, text in {**files, "environment/Dockerfile": dockerfile}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return load_harbor_task(folder)


async def test_a_snapshot_is_an_image_and_a_moved_tag_is_a_miss(
    tmp_path: Path, image: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tag = f"termrl-test/moving:{os.getpid()}"
    docker_engine.docker("tag", image, tag)
    task = write_task(tmp_path / "task", f"FROM {tag}\nRUN echo built > /built\n")

    async def prepare(environment: BaseEnvironment) -> None:
        await environment.exec("echo tool > /tool", timeout_sec=60)

    tools = AgentTools("tool", prepare)
    backend = Backend("docker")
    try:
        (built,) = await freeze([task], backend, tools=tools)
        assert (built.state, built.detail) == ("built", "")
        (again,) = await freeze([task], backend, tools=tools)
        assert again.state == "there"
        found = await find_snapshots([task], backend, "tool")
        assert found.hits == (task.task_name,)
        paths = TrialPaths(tmp_path / "trial")
        paths.mkdir()
        environment = EnvironmentFactory.create_environment_from_config(
            config=Backend("docker", {"snapshots": hand_over(found.handles)}).environment_config(task.config),
            environment_dir=task.task_dir / "environment",
            environment_name="frozen",
            session_id=f"frozen-{os.getpid()}",
            trial_paths=paths,
            task_env_config=task.config.environment.model_copy(),
        )
        await environment.start(force_build=False)
        try:
            assert (await environment.exec("cat /built /tool", timeout_sec=60)).stdout == "built\ntool\n"
        finally:
            await environment.stop(delete=True)
        changed = docker_engine.docker(
            "commit", "--change", "ENV MOVED=1", docker_engine.docker("create", image, "true")
        )
        docker_engine.docker("tag", changed, tag)
        assert (await find_snapshots([task], backend, "tool")).misses == (task.task_name,)
        docker_engine.docker("tag", image, f"termrl-snapshot:{'0' * 24}")
        dropped, removed = await synchronize(backend)
        assert (dropped, removed) == ([], [f"termrl-snapshot:{'0' * 24}"])
    finally:
        for record in SnapshotStore().all():
            docker_engine.docker("rmi", "-f", record.handle)
        left = docker_engine.docker(
            "ps", "-aq", "--filter", f"ancestor={image}", "--filter", "status=created"
        ).split()
        docker_engine.docker("rm", "-f", *left, check=False)
        docker_engine.docker("rmi", "-f", tag, check=False)


async def test_an_image_of_the_engines_can_be_imported_for_the_local_sandbox(
    tmp_path: Path, image: str, make_sandbox: Any, layers_dir: Path
) -> None:
    store = LayerStore(layers_dir, root_id(privileged()), overlay=True)
    store.open()
    record = ImageStore(layers_dir).add("from-docker", f"docker:{image}", store)
    assert record.env["FROM_IMAGE"] == "yes"
    sandbox = make_sandbox(None, config={"docker_image": "from-docker"})
    await sandbox.start(force_build=False)
    assert (await sandbox.exec("echo $FROM_IMAGE; pwd")).stdout == "yes\n/app\n"
    await sandbox.stop(delete=True)


@pytest.fixture
def private_registry(tmp_path: Path) -> Iterator[str]:
    """A registry on loopback that asks everyone for a password (`sesame`)."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "htpasswd").write_text("me:$2b$05$abcdefghijklmnopqrstuuKcS.CYWVYVaLiiCKrrc0A5s3mGesJ9O\n")
    settings = (
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: '{address}'}}\nauth: {{htpasswd: {{realm: here, path: {tmp_path}/htpasswd}}}}\n"
    )
    (tmp_path / "registry.yml").write_text(settings)
    server = subprocess.Popen(
        ["docker-registry", "serve", str(tmp_path / "registry.yml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield address
    finally:
        server.kill()
        server.wait()


async def test_a_private_image_is_pulled_with_the_credentials_that_docker_login_keeps(
    private_registry: str, tmp_path: Path, image: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client finds its plugins beside its settings too, and those are about to be others.
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    private = f"{private_registry}/mine:1"
    docker_engine.docker("tag", image, private)
    deadline = time.monotonic() + 30
    while "Login Succeeded" not in docker_engine.docker(
        "login", "-u", "me", "-p", "sesame", private_registry, check=False
    ):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.2)
    docker_engine.docker("push", private)
    (pushed,) = docker_engine.inspect("image", private)["RepoDigests"]
    assert await Registries().digest(private) == pushed.partition("@")[2]
    docker_engine.docker("rmi", private)
    environment = make(f'[environment]\ndocker_image = "{private}"\n', {"unused": ""})
    await environment.start(force_build=False)
    try:
        assert (await environment.exec("echo $FROM_IMAGE", timeout_sec=60)).stdout == "yes\n"
    finally:
        await environment.stop(delete=True)
    docker_engine.docker("rmi", private)
    docker_engine.docker("logout", private_registry)
    with pytest.raises(DigestUnknown, match=f"`docker login {private_registry}`"):
        await Registries().digest(private)
    refused = make(f'[environment]\ndocker_image = "{private}"\n', {"unused": ""})
    with pytest.raises(RuntimeError, match=r"no basic auth credentials|unauthorized|authentication required"):
        await refused.start(force_build=False)
    await refused.stop(delete=True)
