"""Whether each backend could start now: the reason why not, and the command that mends it."""

import os
from pathlib import Path

import pytest

from termrl.sandbox.backends import Backend, backend_names
from termrl.sandbox.errors import BackendNotReady
from termrl.sandbox.preflight import Check
from termrl.sandbox.readiness import check_backend, check_backends, require_backend


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH that holds only what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_no_docker_command(programs: Path) -> None:
    check = check_backend("docker")
    assert (check.ok, check.detail) == (False, "there is no docker command")
    assert "apt-get install docker.io" in check.fix
    with pytest.raises(BackendNotReady, match=r"no docker command.*environment_type=local would work now"):
        require_backend(Backend("docker"))


def test_an_engine_that_is_not_running_may_not_be_opened_hangs_or_lacks_compose(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(programs, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    assert "not running" in check_backend("docker").detail
    assert "systemctl start docker" in check_backend("docker").fix
    put(programs, "docker", "echo 'permission denied while trying to connect' >&2; exit 1")
    assert "usermod -aG docker" in check_backend("docker").fix
    put(programs, "docker", '[ "$1" = info ]')
    assert check_backend("docker").detail == "there is no docker compose"
    put(programs, "docker", "true")
    assert check_backend("docker").ok
    monkeypatch.setattr("termrl.sandbox.readiness._ENGINE_SECONDS", 0.2)
    put(programs, "docker", "exec /bin/sleep 5")
    assert "did not answer in 0.2 s" in check_backend("docker").detail
    put(programs, "docker", '[ "$1" = info ] || exec /bin/sleep 5')
    assert "did not answer in 0.2 s" in check_backend("docker").detail


def test_a_cloud_without_a_key_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if "MODAL" in name or "DAYTONA" in name or "E2B" in name]:
        monkeypatch.delenv(name)
    for name in ("modal", "daytona", "e2b", "runloop"):
        check = check_backend(name)
        assert not check.ok
        assert check.detail
        assert check.fix
        with pytest.raises(BackendNotReady, match=f"environment_type={name} is not ready"):
            require_backend(Backend(name))


def test_every_backend_has_its_line(programs: Path) -> None:
    checks = list(check_backends())
    assert [check.name for check in checks] == [name for name in backend_names() if name != "local"]
    assert all(isinstance(check, Check) and not check.required for check in checks)
    assert all(check.ok or (check.detail and check.fix) for check in checks)
    assert all("\n" not in check.detail + check.fix for check in checks)
