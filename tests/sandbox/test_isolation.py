"""Attempts to get at the host from inside. Each test fails if the attempt succeeds."""

import asyncio
import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from harbor.models.task.config import NetworkMode

from termrl.engine.process import start_engine
from termrl.sandbox.errors import CommandTimeout
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


async def test_other_sandboxes_are_out_of_sight_and_reach(make_sandbox) -> None:
    one, other = make_sandbox(), make_sandbox()
    await one.start(force_build=False)
    await other.start(force_build=False)
    await other.exec(
        "echo secret > /app/secret; echo secret > /tmp/secret; echo x > /dev/shm/secret; sleep 333 &"
    )
    result = await one.exec(
        "cat /app/secret /tmp/secret /dev/shm/secret; grep -al 333 /proc/[0-9]*/cmdline | head"
    )
    assert "secret" not in (result.stdout or "")
    assert (await one.exec("ls /proc | grep -c '^[0-9]'")).stdout == "4\n"
    assert (await one.exec("kill -9 -1; ls")).return_code in (0, 137)
    assert (await other.exec("cat /app/secret")).stdout == "secret\n"


async def test_a_signal_reaches_no_process_of_the_host(sandbox: LocalEnvironment) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:  # noqa: ASYNC220
        await sandbox.exec(
            f"for p in $(seq 1 40000); do kill -9 $p 2>/dev/null; done; kill -9 {victim.pid} -{victim.pid}"
        )
        assert victim.poll() is None
        victim.kill()


async def test_a_fork_bomb_stays_in_its_sandbox_and_ends_with_it(make_sandbox) -> None:
    sandbox, neighbour = make_sandbox(pids_limit=200), make_sandbox()
    await sandbox.start(force_build=False)
    await neighbour.start(force_build=False)
    before = set(os.listdir("/proc"))
    with contextlib.suppress(CommandTimeout):
        await sandbox.exec("bomb() { bomb | bomb & }; bomb; sleep 2", timeout_sec=4)
    assert len([name for name in set(os.listdir("/proc")) - before if name.isdecimal()]) < 500
    assert (await neighbour.exec("echo well")).stdout == "well\n"
    await sandbox.stop(delete=True)
    assert (await neighbour.exec("echo well")).stdout == "well\n"


async def test_a_hundred_thousand_files_and_a_full_disk_are_its_own_trouble(
    make_sandbox, tmp_path: Path
) -> None:
    sandbox, neighbour = make_sandbox(config={"storage_mb": 64}), make_sandbox()
    await sandbox.start(force_build=False)
    await neighbour.start(force_build=False)
    free = os.statvfs(tmp_path).f_bavail
    filled = await sandbox.exec(
        "dd if=/dev/zero of=/app/full bs=1M count=10000; stat -c %s /app/full", timeout_sec=60
    )
    assert "No space left on device" in (filled.stderr or "")
    assert int((filled.stdout or "0").split()[-1]) <= 64 << 20
    await sandbox.exec(
        "rm /app/full; mkdir /app/many; cd /app/many; seq 100000 | xargs -n 5000 touch", timeout_sec=120
    )
    assert abs(free - os.statvfs(tmp_path).f_bavail) * os.statvfs(tmp_path).f_frsize < 1 << 30
    assert (await sandbox.exec("rm -rf /app/many; echo alive")).stdout == "alive\n"
    assert (await neighbour.exec("echo well > /app/x; cat /app/x")).stdout == "well\n"


async def test_ten_gigabytes_of_memory_are_not_to_be_had(make_sandbox) -> None:
    sandbox = make_sandbox(config={"memory_mb": 512, "storage_mb": 64})
    await sandbox.start(force_build=False)
    fill = "x = []\nfor i in range(100): x.append(bytearray(100 << 20))\nprint('had it all')"
    result = await sandbox.exec(f'python3 -c "{fill}"', timeout_sec=120)
    assert "had it all" not in (result.stdout or "")
    assert (await sandbox.exec("echo alive")).stdout == "alive\n"


async def test_a_daemon_does_not_outlive_its_sandbox(make_sandbox) -> None:
    sandbox = make_sandbox()
    await sandbox.start(force_build=False)
    await sandbox.exec("(setsid nohup sleep 86397.5 > /dev/null 2>&1 &); disown -a")
    await sandbox.stop(delete=True)
    running = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _reads(path) == b"sleep\x0086397.5\0"]
    assert running == []


def _reads(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_the_engine_and_its_key_are_out_of_reach(
    make_sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-of-the-run")
    async with start_engine(tmp_path / "engine", log_path=tmp_path / "log") as engine:
        for network in (NetworkMode.NO_NETWORK, NetworkMode.PUBLIC):
            sandbox = make_sandbox(network=network)
            await sandbox.start(force_build=False)
            port = engine.base_url.rpartition(":")[2].strip("/")
            request = "GET /api/v1/get_server_capabilities HTTP/1.0\\r\\n\\r\\n"
            ask = f"exec 3<>/dev/tcp/127.0.0.1/{port} && printf '{request}' >&3 && head -1 <&3"
            answer = ((await sandbox.exec(ask, timeout_sec=20)).stdout or "").strip()
            if network is NetworkMode.NO_NETWORK:
                assert answer == ""
            else:
                assert " 401 " in answer, "without its key the engine answers nobody"
            searched = f"{tmp_path}/engine/* {tmp_path}/log /root/.env"
            found = await sandbox.exec(f"cat /proc/*/environ 2>/dev/null; env; cat {searched} 2>/dev/null")
            assert "tml-of-the-run" not in (found.stdout or "")
            assert engine.api_key not in (found.stdout or "")
