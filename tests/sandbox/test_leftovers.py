"""Everything carries its run's label; what a killed run left is found and removed, and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from termrl.cli import main
from termrl.sandbox.keeper import cgroups
from termrl.sandbox.labels import Label, current_label, identity, is_alive, labelled_run
from termrl.sandbox.leftovers import find, reap

ENGINES_OWN = ("/docker", "/overlay2", "/netns", "/engine", "/containers/")
SLEEPER = b"sleep\x0086399.25\0"
RUN = Path(__file__).with_name("run_of_thirty_two.py")


def state(layers: Path) -> dict[str, object]:
    """What a run could leave on this host; what somebody else's living run has open is theirs."""
    own = [each for each in find(layers, engines=()) if each.left_over or each.label.run == "thirty-two"]
    groups = [path for name, paths in cgroups.labelled().items() if "thirty-two" in name for path in paths]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        # A container engine beside us mounts and unmounts as it likes.
        "mounts": [line for line in mounts if not any(word in line for word in ENGINES_OWN)],
        "belongings": {(each.kind, each.name) for each in own},
        "cgroups": groups,
        "layers": sorted(path.name for path in layers.glob(".*")),
        "sleepers": [path for path in Path("/proc").glob("[0-9]*/cmdline") if _reads(path) == SLEEPER],
    }


def _reads(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def start(folder: Path, layers: Path) -> tuple[subprocess.Popen[bytes], int]:
    run = subprocess.Popen(
        [sys.executable, str(RUN), str(folder), str(layers)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert run.stdout is not None
    return run, int(run.stdout.readline())


def gone(pid: int) -> bool:
    return not is_alive(identity(pid)) if Path(f"/proc/{pid}").exists() else True


@pytest.mark.parametrize("victim", ["run", "run and keeper"])
def test_a_killed_run_with_32_sandboxes_leaves_nothing_once_reaped(
    tmp_path: Path, layers_dir: Path, victim: str
) -> None:
    reap(layers_dir, engines=())
    before = state(layers_dir)
    run, keeper = start(tmp_path, layers_dir)
    try:
        ours = [each for each in find(layers_dir, engines=()) if each.label.run == "thirty-two"]
        assert len([each for each in ours if each.kind == "sandbox"]) == 32
        assert all(not each.left_over for each in ours)
        assert reap(layers_dir, engines=()) == [], "a living run's belongings were taken for left over"
        if victim == "run and keeper":
            os.kill(keeper, signal.SIGKILL)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        deadline = time.monotonic() + 20
        while not gone(keeper) and time.monotonic() < deadline:
            time.sleep(0.05)
        # Sandboxes end with their keeper; what of them is still ending a moment later is there to be listed.
        left = [each for each in find(layers_dir, engines=()) if each.label.run == "thirty-two"]
        assert all(each.left_over for each in left)
        if victim == "run and keeper" and os.geteuid() == 0:
            assert "cgroup" in {each.kind for each in left}
        while any(each.label.run == "thirty-two" for each in find(layers_dir, engines=())):
            assert time.monotonic() < deadline, find(layers_dir, engines=())
            reap(layers_dir, engines=())
            time.sleep(0.05)
        assert state(layers_dir) == before
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()


def test_what_belongs_to_nobody_known_is_left_alone(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "100"], env={"termrl.run": "x"})
    (tmp_path / "layer").mkdir()
    with labelled_run("mine"):
        mine = tmp_path / f".building-abc.{current_label().as_name()}"
    mine.mkdir()
    dead = tmp_path / ".building-abc.other.1-1-1"
    dead.mkdir()
    try:
        removed = {each.name for each in reap(tmp_path, engines=())}
        assert str(dead) in removed
        assert (tmp_path / "layer").is_dir()
        assert mine.is_dir()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_label_tells_a_process_from_a_later_one_of_its_number() -> None:
    with labelled_run("a run/with: signs"):
        label = current_label()
    assert label.run == "a-run-with--signs"
    assert Label.from_name(label.as_name()) == label
    assert label.is_live
    pid, started, boot = label.owner.split("-")
    assert not is_alive(f"{pid}-{int(started) + 1}-{boot}")
    assert not is_alive(f"{pid}-{started}-0")
    assert not is_alive("nonsense")
    assert current_label().run == "no-run"


def test_list_and_reap_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    dead = tmp_path / "termrl/layers/.building-abc.killed.1-1-1"
    dead.mkdir(parents=True)
    assert main(["sandbox", "list", "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["name"] == str(dead)]
    assert [(row["kind"], row["run"], row["left_over"]) for row in rows] == [("layer", "killed", True)]
    assert main(["sandbox", "list"]) == 0
    assert "`termrl sandbox reap` removes them" in capsys.readouterr().out
    main(["sandbox", "reap"])
    assert f"removed layer {dead} of run killed" in capsys.readouterr().out
    assert not dead.exists()
