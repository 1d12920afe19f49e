"""Commands, limits and files of a running sandbox."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from termrl.sandbox.errors import CommandTimeout, SandboxLost, SandboxRefused
from termrl.sandbox.local import LocalEnvironment


async def test_a_command_gives_its_output_its_errors_and_its_exit_code(sandbox: LocalEnvironment) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.return_code) == ("out\n", "err\n", 3)


async def test_a_command_killed_by_a_signal_ends_as_a_shell_would_say(sandbox: LocalEnvironment) -> None:
    assert (await sandbox.exec("kill -9 $$")).return_code == 137


async def test_commands_start_in_the_working_directory_of_the_dockerfile(sandbox: LocalEnvironment) -> None:
    assert (await sandbox.exec("pwd")).stdout == "/app\n"
    assert (await sandbox.exec("pwd", cwd="/tmp")).stdout == "/tmp\n"


async def test_the_working_directory_of_task_toml_wins(make_sandbox) -> None:
    sandbox = make_sandbox(config={"workdir": "/srv/work"})
    await sandbox.start(force_build=False)
    assert (await sandbox.exec("pwd")).stdout == "/srv/work\n"


async def test_a_missing_directory_is_said_and_not_run_elsewhere(sandbox: LocalEnvironment) -> None:
    result = await sandbox.exec("echo ran", cwd="/nowhere")
    assert result.return_code == 126
    assert result.stdout == ""
    assert "/nowhere" in (result.stderr or "")


async def test_variables_of_the_task_the_dockerfile_and_the_call_are_set(make_sandbox) -> None:
    sandbox = make_sandbox(
        dockerfile='FROM termrl/host\nENV ONE=1 TWO="two words"\nENV BOTH=$ONE-${TWO}\n',
        config={"env": {"THREE": "3"}},
    )
    await sandbox.start(force_build=False)
    result = await sandbox.exec('echo "$ONE|$TWO|$BOTH|$THREE|$FOUR"', env={"FOUR": "4"})
    assert result.stdout == "1|two words|1-two words|3|4\n"


async def test_output_of_many_megabytes_arrives_whole(sandbox: LocalEnvironment) -> None:
    result = await sandbox.exec("head -c 20000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero >&2")
    assert result.stdout == "x" * 20_000_000
    assert result.stderr == "\0" * 3_000_000


async def test_output_that_is_not_text_is_replaced_not_refused(sandbox: LocalEnvironment) -> None:
    result = await sandbox.exec(r"printf 'a\377b\303\251'")
    assert result.stdout == "a\ufffdbé"


async def test_a_time_limit_ends_the_command_and_everything_it_started(sandbox, commands_in) -> None:
    command = "sleep 301 & setsid sleep 302 & (setsid sh -c 'sleep 303 & sleep 304' &) ; sleep 305"
    began = time.monotonic()
    with pytest.raises(CommandTimeout, match="timed out after 1 seconds"):
        await sandbox.exec(command, timeout_sec=1)
    assert time.monotonic() - began < 5
    assert await commands_in(sandbox) == ["init"]


async def test_a_cancelled_call_ends_its_command(sandbox, commands_in) -> None:
    call = asyncio.create_task(sandbox.exec("setsid sleep 400 & sleep 401"))
    while "sleep 401" not in await commands_in(sandbox):
        pass
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await commands_in(sandbox) == ["init"]


async def test_a_service_left_in_the_background_neither_holds_the_call_nor_dies(sandbox) -> None:
    began = time.monotonic()
    result = await sandbox.exec(
        "(while true; do echo tick; touch /tmp/alive; sleep 0.05; done) & echo started"
    )
    assert time.monotonic() - began < 5
    assert "started\n" in result.stdout
    await asyncio.sleep(0.3)
    assert (await sandbox.exec("rm /tmp/alive; sleep 1; ls /tmp/alive")).return_code == 0


async def test_a_command_runs_as_the_user_it_is_asked_for(sandbox: LocalEnvironment) -> None:
    look = "id -un; echo $HOME; cd; touch mine && stat -c %U mine; cat /etc/shadow"
    assert (await sandbox.exec("id -un", user="root")).stdout == "root\n"
    assert (await sandbox.exec("true", user="stranger")).return_code == 126
    result = await sandbox.exec(look, user="user")
    if os.getuid() == 0:
        assert result.stdout == "user\n/home/user\nuser\n"
        assert "Permission denied" in (result.stderr or "")
        assert (await sandbox.exec("id -u", user=1000)).stdout == "1000\n"
    else:
        # Only one id of the host's is an ordinary user's to give away.
        assert result.return_code == 126


async def test_two_calls_run_side_by_side(sandbox: LocalEnvironment) -> None:
    waits = sandbox.exec("while [ ! -e /tmp/go ]; do sleep 0.01; done; echo went", timeout_sec=20)
    goes = sandbox.exec("touch /tmp/go")
    first, _ = await asyncio.gather(waits, goes)
    assert first.stdout == "went\n"


async def test_sixty_four_sandboxes_live_at_once_and_do_not_see_each_other(make_sandbox, commands_in) -> None:
    sandboxes = [make_sandbox() for _ in range(64)]
    await asyncio.gather(*(sandbox.start(force_build=False) for sandbox in sandboxes))
    await asyncio.gather(*(one.exec(f"echo {n} > /app/n; sleep 60 &") for n, one in enumerate(sandboxes)))
    results = await asyncio.gather(*(one.exec("cat /app/n") for one in sandboxes))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(64)]
    assert await commands_in(sandboxes[7]) == ["init", "sleep 60"]
    await asyncio.gather(*(sandbox.stop(delete=True) for sandbox in sandboxes))


async def test_a_fork_bomb_stops_at_the_limit_and_the_sandbox_can_still_be_used(make_sandbox) -> None:
    sandbox = make_sandbox(pids_limit=50)
    await sandbox.start(force_build=False)
    await sandbox.exec("sh -c 'while true; do sleep 60 & done'", timeout_sec=10)
    count = int((await sandbox.exec("set -- /proc/[0-9]*; echo $#")).stdout or 0)
    assert 40 <= count <= 55
    await sandbox.stop(delete=True)


async def test_files_stop_at_the_storage_the_task_asked_for(make_sandbox) -> None:
    sandbox = make_sandbox(config={"storage_mb": 10})
    await sandbox.start(force_build=False)
    result = await sandbox.exec("head -c 20000000 /dev/zero > /app/big; stat -c %s /app/big")
    assert "No space left" in (result.stderr or "")
    assert int(result.stdout or 0) <= 10 << 20


async def test_what_one_sandbox_writes_is_gone_in_the_next(make_sandbox) -> None:
    first, second = make_sandbox(), make_sandbox()
    await first.start(force_build=False)
    await first.exec("echo mine > /app/file; echo mine > /etc/passwd; rm -rf /root")
    await first.stop(delete=True)
    await second.start(force_build=False)
    result = await second.exec("cat /app/file; head -1 /etc/passwd; ls -d /root")
    assert result.stdout == "root:x:0:0:root:/root:/bin/bash\n/root\n"


async def test_a_directory_can_be_removed_and_made_again(sandbox: LocalEnvironment) -> None:
    result = await sandbox.exec(
        "cd / && rm -rf /app /home && mkdir /app /home && mv /srv /srv2 && ls /app /srv2"
    )
    assert result.return_code == 0, result.stderr


async def test_a_stopped_sandbox_says_so(sandbox: LocalEnvironment) -> None:
    await sandbox.stop(delete=True)
    await sandbox.stop(delete=True)
    with pytest.raises(SandboxLost, match="not running"):
        await sandbox.exec("true")


async def test_files_and_their_modes_travel_both_ways_byte_for_byte(sandbox, tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    source = tmp_path / "source"
    source.write_bytes(content)
    source.chmod(0o751)
    await sandbox.upload_file(source, "/app/deep/er/file")
    assert (await sandbox.exec("stat -c %a,%U /app/deep/er/file")).stdout == "751,root\n"
    await sandbox.download_file("/app/deep/er/file", tmp_path / "new" / "copy")
    assert (tmp_path / "new" / "copy").read_bytes() == content
    assert (tmp_path / "new" / "copy").stat().st_mode & 0o777 == 0o751


async def test_a_file_sent_to_a_directory_keeps_its_name(sandbox, tmp_path: Path) -> None:
    (tmp_path / "named.txt").write_text("here")
    await sandbox.upload_file(tmp_path / "named.txt", "/tmp")
    await sandbox.upload_file(tmp_path / "named.txt", "/srv/new/")
    assert (await sandbox.exec("cat /tmp/named.txt /srv/new/named.txt")).stdout == "herehere"


async def test_whole_directories_travel_both_ways(sandbox, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    (source / "empty").mkdir(parents=True)
    (source / "closed").mkdir()
    (source / "closed" / "ünï.txt").write_text("text")
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    (source / "closed").chmod(0o500)
    await sandbox.upload_dir(source, "/app/tree")
    assert (await sandbox.exec("/app/tree/link; stat -c %a /app/tree/closed")).stdout == "ran\n500\n"
    back = tmp_path / "back"
    await sandbox.download_dir("/app/tree", back)
    assert sorted(path.relative_to(back).as_posix() for path in back.rglob("*")) == [
        *("closed", "closed/ünï.txt", "empty", "link", "run.sh")
    ]
    assert (back / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (back / "link").readlink() == Path("run.sh")


async def test_a_file_that_is_not_there_is_named(sandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxRefused, match="/app/missing"):
        await sandbox.download_file("/app/missing", tmp_path / "x")
    with pytest.raises(SandboxRefused, match="absent"):
        await sandbox.upload_file(tmp_path / "absent", "/app/x")


async def test_a_mount_the_user_asked_for_is_there(make_sandbox, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("shared")
    mount = {"type": "bind", "source": str(tmp_path / "data"), "target": "/data", "read_only": True}
    sandbox = make_sandbox(mounts=[mount])
    await sandbox.start(force_build=False)
    result = await sandbox.exec("cat /data/file; echo no > /data/file")
    assert result.stdout == "shared"
    assert "Read-only" in (result.stderr or "")
