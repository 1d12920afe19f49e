"""Attempts to get at the host from inside. Each test fails if the attempt succeeds."""

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest
from harbor.models.task.config import NetworkMode

from termrl.sandbox.local import LocalEnvironment


async def test_the_hosts_homes_and_files_are_not_there(sandbox: LocalEnvironment, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    home, project = Path.home(), Path(__file__).parent
    result = await sandbox.exec(
        f"cat {secret} {home}/.profile; ls -A {project}; ls -A /home /root /opt /mnt /tmp"
    )
    assert (result.stdout or "").split() == [
        *("/home:", "user", "/mnt:", "/opt:", "termrl", "/root:", ".bashrc", "/tmp:")
    ]
    assert (result.stderr or "").count("No such file or directory") == 3


async def test_the_hosts_etc_is_not_there(sandbox: LocalEnvironment) -> None:
    result = await sandbox.exec("cat /etc/shadow /etc/passwd; ls /etc/ssh /etc/ssl/private /etc/machine-id")
    assert "cannot access '/etc/ssh'" in (result.stderr or "")
    assert "cannot access '/etc/ssl/private'" in (result.stderr or "")
    assert "cannot access '/etc/machine-id'" in (result.stderr or "")
    host_users = {line.split(":")[0] for line in Path("/etc/passwd").read_text().splitlines()}
    seen = {line.split(":")[0] for line in (result.stdout or "").splitlines()}
    assert seen == {"root", "daemon", "bin", "www-data", "user", "nobody"}
    assert host_users - seen, "this host has no user that could have shown"


async def test_the_hosts_variables_are_not_there(
    sandbox: LocalEnvironment, monkeypatch: pytest.MonkeyPatch, make_sandbox
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sesame")
    late = make_sandbox()
    await late.start(force_build=False)
    for one in (sandbox, late):
        result = await one.exec("env; cat /proc/*/environ | tr '\\0' '\\n'")
        assert "sesame" not in (result.stdout or "")
        names = {line.partition("=")[0] for line in (result.stdout or "").splitlines()}
        assert names <= {"HOME", "HOSTNAME", "LANG", "PATH", "PWD", "SHLVL", "TMUX_TMPDIR", "_", "OLDPWD"}


async def test_no_descriptor_of_the_hosts_is_handed_in(sandbox: LocalEnvironment) -> None:
    result = await sandbox.exec("sleep 20 & sleep 0.1; readlink /proc/$!/fd/*")
    kinds = [line.partition(":")[0] for line in (result.stdout or "").splitlines()]
    assert kinds == ["/dev/null", "pipe", "pipe"]


async def test_the_hosts_processes_are_not_there(sandbox: LocalEnvironment) -> None:
    result = await sandbox.exec(f"cat /proc/[0-9]*/comm; kill -0 {os.getpid()}")
    assert set((result.stdout or "").split()) <= {"init", "bash", "cat"}
    assert "No such process" in (result.stderr or "")


async def test_the_hosts_programs_can_be_run_but_not_changed(sandbox: LocalEnvironment) -> None:
    for attempt in (
        "touch /usr/planted",
        "touch /bin/planted",
        "rm -f /usr/bin/env",
        "echo x >> /usr/bin/env",
        "chmod 777 /usr/bin",
        "mount -o remount,rw /usr",
        "mount -o remount,rw,bind /usr",
        "umount -l /usr",
        "unshare -Urm mount -o remount,rw,bind /usr",
        "unshare -Urm umount -l /usr",
        "mount -t tmpfs none /mnt",
    ):
        result = await sandbox.exec(attempt)
        assert result.return_code != 0, f"{attempt} succeeded"
    assert not Path("/usr/planted").exists()
    assert (await sandbox.exec("/usr/bin/env true")).return_code == 0


async def test_the_kernels_settings_and_the_hosts_devices_are_out_of_reach(sandbox: LocalEnvironment) -> None:
    for attempt in (
        "echo x > /proc/sys/kernel/core_pattern",
        "echo 1 > /proc/sys/vm/drop_caches",
        "echo c > /proc/sysrq-trigger",
        "head -c1 /proc/kcore",
        "mknod /tmp/disk b 254 0",
        "mknod /tmp/mem c 1 1",
        "hostname other",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "ls /proc/1/root/",
    ):
        result = await sandbox.exec(attempt)
        assert result.return_code != 0, f"{attempt} succeeded"


async def test_root_inside_is_not_root_outside(make_sandbox, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for parent in shared.parents[:3]:
        if parent.stat().st_uid == os.getuid():
            parent.chmod(0o755)
    (shared / "private").write_text("mine")
    (shared / "private").chmod(0o600)
    sandbox = make_sandbox(mounts=[{"type": "bind", "source": str(shared), "target": "/shared"}])
    await sandbox.start(force_build=False)
    await sandbox.exec("touch /shared/made; chmod u+s /shared/made")
    owner = (shared / "made").stat().st_uid
    if os.getuid() == 0:
        assert owner > 65535
        assert (await sandbox.exec("cat /shared/private")).return_code != 0
    else:
        assert owner == os.getuid()


@pytest.fixture
def host_port():
    """A server on the host's loopback that greets whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(b"hello from the host\n")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


async def test_without_network_the_hosts_loopback_is_out_of_reach(sandbox, host_port: int) -> None:
    result = await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{host_port} && cat <&3", timeout_sec=10)
    assert "hello" not in (result.stdout or "")
    assert "refused" in (result.stderr or "")
    assert (await sandbox.exec("cat /proc/net/dev | grep -c :")).stdout == "1\n"


async def test_with_a_public_network_the_hosts_network_is_there(make_sandbox, host_port: int) -> None:
    sandbox = make_sandbox(network=NetworkMode.PUBLIC)
    await sandbox.start(force_build=False)
    result = await sandbox.exec(f"exec 3<>/dev/tcp/127.0.0.1/{host_port} && cat <&3", timeout_sec=10)
    assert result.stdout == "hello from the host\n"
    assert "localhost" in ((await sandbox.exec("cat /etc/hosts")).stdout or "")


async def test_a_sandbox_without_network_still_has_a_loopback_of_its_own(sandbox: LocalEnvironment) -> None:
    assert (await sandbox.exec("grep -q 0100007F:0050 /proc/net/tcp; getent hosts localhost")).stdout != ""


async def test_a_link_planted_inside_does_not_write_on_the_host(sandbox, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "file").write_text("new")
    await sandbox.exec(f"mkdir -p {tmp_path}; ln -s {victim} /app/link; ln -s / /app/root")
    await sandbox.upload_file(tmp_path / "file", "/app/link")
    await sandbox.upload_file(tmp_path / "file", f"/app/root{victim}")
    assert victim.read_text() == "untouched"


async def test_a_download_leaves_out_what_leads_away_from_its_directory(sandbox, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    await sandbox.exec(
        f"cd /logs/agent; ln -s {victim} absolute; ln -s ../victim relative; ln -s .. up; ln -s good alias;"
        "echo fine > good; mkfifo pipe; mkdir sub; ln -s ../good sub/inner"
    )
    target = tmp_path / "agent"
    for _ in range(2):
        await asyncio.wait_for(sandbox.download_dir("/logs/agent", target), 10)
    names = sorted(path.relative_to(target).as_posix() for path in target.rglob("*"))
    assert names == ["alias", "good", "sub", "sub/inner"]
    assert victim.read_text() == "untouched"
