"""Any `SandboxInterface` as a Harbor environment: what it makes of five calls, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox import SandboxInterface, default_sandbox_factory, honours
from termrl.sandbox.bridge import InterfaceEnvironment
from termrl.sandbox.errors import CommandTimeout, SandboxLost, SandboxRefused, UnsupportedEnvironment
from termrl.sandbox.factory import hand_over

TOML = "[agent]\ntimeout_sec = 100\n[verifier]\ntimeout_sec = 50\n[environment]\nbuild_timeout_sec = 20\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def bridged(
    task: Path, factory: Any, config: dict[str, Any] | None = None, **options: Any
) -> InterfaceEnvironment:
    environment_dir = task / "environment"
    environment_dir.mkdir(parents=True, exist_ok=True)
    (environment_dir / "Dockerfile").write_text("FROM termrl/host\nWORKDIR /app\n")
    (task / "task.toml").write_text(TOML)
    paths = TrialPaths(task / "trial")
    paths.mkdir()
    return InterfaceEnvironment(
        environment_dir=environment_dir,
        environment_name="t",
        session_id="t__env",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(**(config or {})),
        network_policy=options.pop("network_policy", NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)),
        factory=hand_over(factory),
        **options,
    )


async def test_all_that_harbor_needs_is_made_of_five_calls(tmp_path: Path) -> None:
    environment = bridged(tmp_path, default_sandbox_factory, {"env": {"TASK": "it's"}, "workdir": "/tmp"})
    await environment.start(force_build=False)
    try:
        result = await environment.exec('echo "$TASK $OWN"; pwd; exit 3', env={"OWN": "x y"})
        assert (result.stdout, result.return_code) == ("it's x y\n/tmp\n", 3)
        assert (
            await environment.exec("id -un; echo $OWN", user="user", env={"OWN": "1"})
        ).stdout == "user\n1\n"
        assert (await environment.exec("id -un", user=1000)).stdout == "user\n"
        content = bytes(range(256)) * 6000
        (tmp_path / "data").write_bytes(content)
        (tmp_path / "data").chmod(0o755)
        await environment.upload_file(tmp_path / "data", "/deep/er/data")
        assert (
            await environment.exec("test -x /deep/er/data && stat -c %s /deep/er/data")
        ).stdout == "1536000\n"
        await environment.download_file("/deep/er/data", tmp_path / "back" / "data")
        assert (tmp_path / "back" / "data").read_bytes() == content
        folder = tmp_path / "folder"
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "file").write_text("é")
        (folder / "link").symlink_to("sub/file")
        await environment.upload_dir(folder, "/folder")
        await environment.exec("mkfifo /folder/pipe; ln -s /etc/passwd /folder/away")
        await environment.download_dir("/folder/sub", tmp_path / "sub")
        assert (tmp_path / "sub" / "file").read_text() == "é"
        with pytest.raises(CommandTimeout, match="timed out after 1 s"):
            await environment.exec("sleep 30", timeout_sec=1)
        assert (await environment.exec("exit 124", timeout_sec=30)).return_code == 124
        with pytest.raises(SandboxRefused, match="not a readable file"):
            await environment.download_file("/missing", tmp_path / "missing")
    finally:
        await environment.stop(delete=True)
    with pytest.raises(SandboxLost):
        await environment.exec("true")


async def test_the_lifetime_covers_every_phase(tmp_path: Path) -> None:
    asked: list[tuple[Path, int]] = []

    async def factory(environment_dir: Path, timeout: int) -> SandboxInterface:
        asked.append((environment_dir, timeout))
        return await default_sandbox_factory(environment_dir, timeout)

    for options in ({}, {"lifetime": 7}):
        environment = bridged(tmp_path, honours("dockerfile", "no-network")(factory), **options)
        await environment.start(force_build=False)
        await environment.stop(delete=True)
    assert [directory for directory, _ in asked] == [tmp_path / "environment"] * 2
    assert asked[0][1] >= 100 + 50 + 20 + 300
    assert asked[1][1] == 7


@pytest.mark.parametrize(
    ("config", "network", "named"),
    [
        ({"cpus": 2, "memory_mb": 100}, NetworkMode.PUBLIC, "cpus, memory_mb"),
        ({"docker_image": "ubuntu"}, NetworkMode.PUBLIC, "docker_image"),
        ({"gpus": 1}, NetworkMode.PUBLIC, "gpus"),
        ({}, NetworkMode.NO_NETWORK, "no-network"),
    ],
)
def test_what_a_factory_does_not_say_it_honours_is_refused_before_it_is_called(
    tmp_path: Path, config: dict[str, Any], network: NetworkMode, named: str
) -> None:
    async def careless(environment_dir: Path, timeout: int) -> SandboxInterface:
        raise AssertionError("it was called")

    with pytest.raises(
        UnsupportedEnvironment, match=f"asks for {named}, which the sandbox factory .*careless"
    ):
        bridged(tmp_path, careless, config, network_policy=NetworkPolicy(network_mode=network))
