"""Imported root file systems, and Dockerfiles built on them."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from termrl.cli import main
from termrl.sandbox.build import LayerBuildFailed
from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.images import ImageNotImported, ImageStore, canonical
from termrl.sandbox.keeper.boot import privileged, root_id, subordinate_ids
from termrl.sandbox.layers import LayerStore
from termrl.sandbox.local import LocalEnvironment

Run = Callable[..., Awaitable[LocalEnvironment]]


@pytest.fixture(scope="session")
def small(layers_dir: Path, small_root: Path) -> str:
    store = LayerStore(layers_dir, root_id(privileged()), overlay=True)
    store.open()
    ImageStore(layers_dir).add("small:1", str(small_root), store)
    return "small:1"


@pytest.fixture
async def run(make_sandbox, small: str) -> AsyncIterator[Run]:
    started: list[LocalEnvironment] = []

    async def start(dockerfile: str | None, **options: Any) -> LocalEnvironment:
        sandbox: LocalEnvironment = make_sandbox(dockerfile, **options)
        await sandbox.start(force_build=False)
        started.append(sandbox)
        return sandbox

    yield start
    for sandbox in started:
        await sandbox.stop(delete=True)


async def said(sandbox: LocalEnvironment, command: str, **options: Any) -> str:
    result = await sandbox.exec(command, **options)
    assert result.return_code == 0, result.stderr
    return (result.stdout or "").strip()


async def test_an_imported_image_is_all_that_a_sandbox_on_it_sees(run: Run, small_root: Path) -> None:
    sandbox = await run(None, config={"docker_image": "small:1"})
    assert await said(sandbox, ". /etc/os-release; echo $ID") == "termrl-small"
    listed = set((await said(sandbox, "ls /usr/bin")).split())
    assert listed == {path.name for path in (small_root / "usr/bin").iterdir()}
    await said(sandbox, "echo x > /usr/bin/new && rm /usr/bin/tee")
    assert (small_root / "usr/bin/tee").exists()
    fresh = await run(None, config={"docker_image": "small"} | {"docker_image": "docker.io/library/small:1"})
    assert await said(fresh, "ls /usr/bin/tee") == "/usr/bin/tee"


async def test_a_terminal_works_on_an_image_that_has_no_tmux(run: Run) -> None:
    sandbox = await run("FROM small:1\n")
    assert (await sandbox.exec("test -e /usr/bin/tmux")).return_code == 1
    await said(
        sandbox,
        "tmux new-session -d -s a -x 80 -y 24 && tmux send-keys -t a 'echo $((40+2))' Enter; sleep 0.5",
    )
    assert "42" in (await said(sandbox, "tmux capture-pane -p -t a")).split()


async def test_every_instruction_does_what_it_says(run: Run) -> None:
    sandbox = await run(
        "ARG BASE=small:1\nFROM ${BASE} AS build\nWORKDIR /src\nCOPY lib/ lib/\n"
        "RUN cat lib/a lib/b > out && mkdir -p /deep/er && touch /deep/er/file\n"
        'FROM small:1\nARG NAME=world\nENV GREETING=hello\nSHELL ["/bin/bash", "-ec"]\n'
        "RUN echo $GREETING $NAME > /greeting\nCOPY --from=build /src/out /deep /result/\n"
        "COPY --chmod=700 script.sh /usr/local/bin/script\nADD packed.tar /unpacked/\n"
        "COPY <<END /heredoc\nit is $GREETING\nEND\n"
        "RUN <<SCRIPT\necho one > /script-ran\necho two >> /script-ran\nSCRIPT\nWORKDIR /srv/app\n",
        files={
            "lib/a": "A",
            "lib/b": "B",
            "lib/secret": "s",
            "script.sh": "#!/bin/bash\necho ran\n",
            ".dockerignore": "**/secret\n",
            "packed.tar": "",
        },
        prepare=lambda folder: subprocess.run(
            ["tar", "-C", str(folder / "lib"), "-cf", str(folder / "packed.tar"), "a"], check=True
        ),
    )
    assert (
        await said(sandbox, "pwd; cat /greeting /result/out; ls /result/")
        == "/srv/app\nhello world\nABer\nout"
    )
    assert (
        await said(sandbox, "script; cat /unpacked/a /heredoc /script-ran") == "ran\nAit is hello\none\ntwo"
    )
    assert await said(sandbox, "echo $GREETING-$NAME; ls -A /src /lib/a 2>/dev/null | wc -l") == "hello-\n0"


async def test_users_and_owners_hold_or_are_refused_by_name_where_there_is_one_id(run: Run) -> None:
    dockerfile = (
        "FROM small:1\nRUN echo 'app:x:77:78::/app:/bin/bash' >> /etc/passwd; mkdir /data\n"
        "COPY --chown=app a /a\nRUN chown user:user /data\nUSER app\nRUN id -u > /tmp/who\n"
    )
    if os.geteuid() != 0 and not subordinate_ids():
        with pytest.raises(UnsupportedEnvironment, match="line 3 needs the user app, and an ordinary user"):
            await run(dockerfile, files={"a": "x"})
        with pytest.raises(UnsupportedEnvironment, match="runs as the user user, and an ordinary user"):
            await run("FROM small:1\nUSER user\n")
        return
    sandbox = await run(dockerfile, files={"a": "x"})
    assert await said(sandbox, "id -u; id -g; echo $HOME; cat /tmp/who") == "77\n78\n/app\n77"
    assert await said(sandbox, "stat -c %U:%u:%g /a /data", user="root") == "app:77:78\nuser:1000:1000"
    assert (await sandbox.exec("touch /data/x")).return_code != 0
    assert await said(sandbox, "touch /data/x; stat -c %u /data/x", user="user") == "1000"


async def test_a_step_that_fails_says_which_and_what_it_said(run: Run) -> None:
    with pytest.raises(LayerBuildFailed, match=r"(?s)Dockerfile, line 3: RUN ended with 4: about to.*fail"):
        await run("FROM small:1\nRUN true\nRUN echo about to; echo fail >&2; exit 4\n")


async def test_an_image_is_never_silently_replaced(make_sandbox, run: Run) -> None:
    with pytest.raises(
        UnsupportedEnvironment, match=r"FROM other:2: there is no image other:2 here: import it"
    ):
        make_sandbox("FROM other:2\n")
    mapped = await run("FROM other:2\n", base_images={"other:2": "small:1"})
    assert await said(mapped, "test -e /usr/bin/python3 && echo host || echo small") == "small"
    on_host = await run("FROM other:2\n", base_images={"other:2": "termrl/host"})
    assert await said(on_host, "ls /usr/share > /dev/null && echo host") == "host"


def test_references_that_mean_the_same_are_the_same() -> None:
    assert canonical("ubuntu") == canonical("docker.io/library/ubuntu:latest") == "ubuntu:latest"
    assert canonical("host:5000/x") == "host:5000/x:latest"
    assert canonical("x@sha256:abc") == "x@sha256:abc"


def test_images_on_the_command_line(
    tmp_path: Path, small_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packed = tmp_path / "root.tar.gz"
    subprocess.run(["tar", "-C", str(small_root), "-czf", str(packed), "."], check=True)
    assert main(["images", "import", "mine:1", str(packed)]) == 0
    assert main(["images", "import", "same:1", str(small_root)]) == 0
    capsys.readouterr()
    assert main(["images", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [record["reference"] for record in listed] == ["mine:1", "same:1"]
    assert main(["images", "remove", "mine:1"]) == 0
    assert main(["images", "remove", "mine:1"]) == 2
    assert main(["images", "import", "x", str(tmp_path / "missing")]) == 2
    assert "There is no" in capsys.readouterr().err
    (tmp_path / "text").write_text("no tar")
    assert main(["images", "import", "x", str(tmp_path / "text")]) == 2
    assert main(["images", "import", "x", str(tmp_path / "cache")]) == 2
    assert "holds no root file system" in capsys.readouterr().err
    assert main(["images", "import", "x", "docker:not-there:1"]) == 2
    assert not list((tmp_path / "cache/termrl/layers").glob(".building-*"))


def test_a_tar_that_leads_away_writes_nothing_outside(tmp_path: Path) -> None:
    import io
    import tarfile

    packed = tmp_path / "evil.tar"
    with tarfile.open(packed, "w") as archive:
        for name, link in (("etc", None), ("up", "../../.."), ("away", str(tmp_path))):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if link is None else tarfile.SYMTYPE
            member.linkname = link or ""
            member.mode = 0o755
            archive.addfile(member)
        for name in ("up/planted", "away/planted", "../planted", "/etc/fine"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"x"))
    layers = tmp_path / "in" / "layers"
    store = LayerStore(layers, root_id(privileged()), overlay=True)
    store.open()
    record = ImageStore(layers).add("evil", str(packed), store)
    assert sorted(path.name for path in tmp_path.rglob("planted")) == []
    assert (layers / record.layer / "root/etc/fine").read_text() == "x"
    with pytest.raises(ImageNotImported, match="built in"):
        ImageStore(layers).add("termrl/host", str(packed), store)
