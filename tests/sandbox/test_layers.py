"""Layers: built once, whole or not at all, shared by processes, and swept up after a crash."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harbor.environments.base import SandboxBuildFailedError

from termrl.sandbox.errors import SandboxUnavailable
from termrl.sandbox.layers import LayerStore

DOCKERFILE = """FROM termrl/host
WORKDIR /app
COPY data /app/data
ENV GREETING=hello
RUN echo "$GREETING" > built && rm /etc/hostname && mkdir -p /srv/deep && \\
    head -c 8 /dev/urandom | od > /app/once
"""


@pytest.mark.parametrize("overlay", [True, False])
async def test_a_dockerfile_is_built_once_and_every_sandbox_starts_from_it(
    make_sandbox, tmp_path, overlay
) -> None:
    options = {"layers_dir": str(tmp_path / "layers"), "overlay": overlay}
    sandboxes = [make_sandbox(DOCKERFILE, {"data/file.txt": "copied"}, **options) for _ in range(3)]
    await asyncio.gather(*(sandbox.start(force_build=False) for sandbox in sandboxes))
    look = "cat data/file.txt built once; ls -d /srv/deep /etc/hostname; stat -c %U data built; id -u"
    seen = {(await sandbox.exec(look)).stdout for sandbox in sandboxes}
    assert len(seen) == 1
    lines = seen.pop().splitlines()
    assert lines[0] == "copiedhello"
    assert lines[-4:] == ["/srv/deep", "root", "root", "0"]
    await sandboxes[0].exec("echo changed > built; rm -rf data")
    assert (await sandboxes[1].exec("cat built data/file.txt")).stdout == "hello\ncopied"
    assert not list((tmp_path / "layers").glob(".building-*"))


async def test_a_forced_build_is_new_and_the_sandboxes_own(make_sandbox, tmp_path: Path) -> None:
    layers = tmp_path / "layers"
    sandboxes = [make_sandbox(DOCKERFILE, {"data/file.txt": "x"}, layers_dir=str(layers)) for _ in range(3)]
    for sandbox, force in zip(sandboxes, (False, True, False), strict=True):
        await sandbox.start(force_build=force)
    first, forced, third = [(await sandbox.exec("cat once")).stdout for sandbox in sandboxes]
    assert first == third != forced
    for sandbox in sandboxes:
        await sandbox.stop(delete=True)
    assert not list(layers.glob(".building-*"))


async def test_other_content_is_another_layer(make_sandbox) -> None:
    results = []
    for text in ("one", "two"):
        sandbox = make_sandbox(DOCKERFILE, {"data/file.txt": text})
        await sandbox.start(force_build=False)
        results.append((await sandbox.exec("cat data/file.txt")).stdout)
    assert results == ["one", "two"]


async def test_a_failing_run_names_its_line_and_leaves_nothing(make_sandbox, tmp_path: Path) -> None:
    layers = tmp_path / "layers"
    sandbox = make_sandbox(
        "FROM termrl/host\nRUN true\nRUN echo about to fail && false\n", layers_dir=str(layers)
    )
    with pytest.raises(SandboxBuildFailedError, match=r"line 3: RUN ended with 1: about to fail"):
        await sandbox.start(force_build=False)
    assert [path.name for path in layers.iterdir() if not path.name.startswith("base-")] == []
    await sandbox.stop(delete=True)


async def test_a_build_leaves_nothing_wherever_it_is_cancelled(make_sandbox, tmp_path: Path) -> None:
    layers = tmp_path / "layers"
    for later in (0, 0.001, 0.002, 0.003, 0.004, 0.006, 0.01, 0.02, 0.05, 0.3):
        sandbox = make_sandbox("FROM termrl/host\nRUN sleep 600\n", layers_dir=str(layers))
        start = asyncio.create_task(sandbox.start(force_build=False))
        deadline = time.monotonic() + 60
        while not (list(layers.glob("base-*")) and list(layers.glob(".building-*"))):
            assert time.monotonic() < deadline
            await asyncio.sleep(0)
        await asyncio.sleep(later)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await asyncio.sleep(0.1)  # what is still being made would come up now
        assert [path.name for path in layers.iterdir() if not path.name.startswith("base-")] == [], later


def test_what_a_dead_process_left_unfinished_is_removed_and_the_rest_kept(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    abandoned = tmp_path / f".building-abcd.run.{ended.pid}-123-0"
    (abandoned / "work" / "work").mkdir(parents=True)
    (abandoned / "work" / "work").chmod(0)
    unused = tmp_path / "0123"
    unused.mkdir()
    os.utime(unused, (0, 0))
    store = LayerStore(tmp_path, owner=0, overlay=True)
    ours = store.new_directory()
    store.open()
    assert not unused.exists()
    assert not abandoned.exists()
    assert ours.exists()


def test_two_processes_may_build_the_same_layer_at_once(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from termrl.sandbox.layers import LayerStore\n"
        "store = LayerStore(pathlib.Path(sys.argv[1]), 0, True); store.open()\n"
        "for n in range(40):\n"
        "    with store.building(f'layer-{n}') as place:\n"
        "        for part in range(20): (place / str(part)).write_text('whole')\n"
        "    assert len(list((store.root / f'layer-{n}').iterdir())) == 20\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert len(list(tmp_path.iterdir())) == 40


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxUnavailable, match="XDG_CACHE_HOME"):
        LayerStore(tmp_path / "file" / "layers", 0, True).open()
