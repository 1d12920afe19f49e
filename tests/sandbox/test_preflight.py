"""Whether the sandbox can work here is found out by trying, and said in one sentence."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from termrl.errors import UserError
from termrl.sandbox.preflight import check_local, require_local
from termrl.sandbox.tmux import Tmux, find_tmux

REQUIRE = """
import sys
from termrl.errors import UserError
from termrl.sandbox.preflight import check_local, require_local
print([check.ok for check in check_local()][0])
try:
    require_local()
except UserError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_on_a_host_that_can_every_check_passes() -> None:
    checks = check_local()
    assert [check.name for check in checks] == [
        *("user namespaces", "fresh /proc", "overlayfs", "limits", "users", "tmux", "bash")
    ]
    assert [check for check in checks if not check.ok] == []
    (limits,) = [check.detail for check in checks if check.name == "limits"]
    assert re.match(r"by control groups: \w+ \(v[12]\)|no control group can be made; ", limits)
    require_local()


def test_where_user_namespaces_are_forbidden_one_sentence_says_what_to_set() -> None:
    # Inside a user namespace the limit on further ones is its own to set: the kernel then really refuses.
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" -c "$1"'
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, sys.executable, REQUIRE],
        capture_output=True,
        text=True,
        check=False,
    )
    allowed, sentence = ended.stdout.splitlines()
    assert ended.returncode == UserError.exit_code == 2
    assert allowed == "False"
    assert sentence.startswith("The local sandbox can't run on this host: user namespaces refused")
    assert "sysctl -w user.max_user_namespaces" in sentence


def test_a_sandbox_that_is_started_there_says_the_same(tmp_path: Path, layers_dir: Path) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    script = Path(__file__).with_name("run_to_kill.py")
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"]
    command += [sys.executable, str(script), str(tmp_path), str(layers_dir)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "SandboxUnavailable: The local sandbox can't run on this host: user namespaces" in ended.stderr


def test_where_proc_is_partly_hidden_that_is_what_is_said() -> None:
    # As in a container: something lies over a part of /proc, so the kernel gives no fresh one.
    hide = 'mount -t tmpfs none /proc/sys && exec setpriv --bounding-set=-sys_admin "$0" -c "$1"'
    ended = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hide, sys.executable, REQUIRE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "fresh /proc refused" in ended.stdout.splitlines()[-1]


def test_tmux_is_the_hosts_or_the_one_set_up_unpacked_or_none(tmp_path: Path) -> None:
    assert find_tmux() is not None
    assert find_tmux(system=(), tools=tmp_path) is None
    program = tmp_path / "tmux/usr/bin/tmux"
    library = tmp_path / "tmux/usr/lib/some-linux-gnu/libevent.so.2"
    for path in (program, library):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    assert find_tmux(system=(), tools=tmp_path) == Tmux(program, (library.parent,))
    host = tmp_path / "host-tmux"
    host.write_bytes(b"")
    assert find_tmux(system=(host,), tools=tmp_path) == Tmux(host)


@pytest.fixture
def unpacked_tmux(tmp_path: Path) -> Path:
    """A tools directory as set-up leaves it: the program, and the library that only it needs."""
    tmux = find_tmux()
    assert tmux is not None
    unpacked = tmp_path / "tools/tmux"
    for folder in ("usr/bin", "usr/lib"):
        (unpacked / folder).mkdir(parents=True)
    shutil.copy2(tmux.program, unpacked / "usr/bin/tmux")
    listing = subprocess.run(["ldd", str(tmux.program)], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        if "=> /" in line and "libevent" in line:
            shutil.copy2(line.split("=> ")[1].split(" ")[0], unpacked / "usr/lib")
    return tmp_path / "tools"


async def test_an_unpacked_tmux_works_inside(
    make_sandbox, unpacked_tmux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = find_tmux(system=(), tools=unpacked_tmux)
    monkeypatch.setattr("termrl.sandbox.build.find_tmux", lambda: private)
    sandbox = make_sandbox(layers_dir=str(tmp_path / "layers"))
    await sandbox.start(force_build=False)
    start = "PATH=/opt/termrl/bin:$PATH; tmux -V && tmux new-session -d -s s 'env > /tmp/seen; sleep 50'"
    result = await sandbox.exec(f"{start} && sleep 0.5 && tmux ls && cat /tmp/seen")
    assert result.return_code == 0, result.stderr
    assert "s: 1 windows" in (result.stdout or "")
    assert "LD_LIBRARY_PATH" not in (result.stdout or "")
