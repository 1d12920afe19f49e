"""What a Dockerfile comes to, and the refusal of what the local sandbox does not have."""

from pathlib import Path

import pytest

from termrl.errors import UserError
from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.images import ImageStore
from termrl.sandbox.reading import read_dockerfile
from termrl.sandbox.recipe import HOST_IMAGE, Copy, Image, Recipe, Run


def find_image(reference: str, where: str) -> Image:
    if reference == "debian:12":
        return Image(reference, "key", (("PATH", "/image"),), "/srv", "root")
    return ImageStore(Path("/nonexistent")).find(reference, where)


def recipe(folder: Path, text: str) -> Recipe:
    (folder / "Dockerfile").write_text(text)
    return read_dockerfile(folder / "Dockerfile", find_image)


def test_steps_carry_what_was_said_before_them(tmp_path: Path) -> None:
    read = recipe(
        tmp_path,
        "ARG TAG=12\nFROM debian:${TAG}\nRUN one\nWORKDIR app\nENV A=1 B=${A:-x}\nARG C=c\n"
        'USER me:us\nSHELL ["/bin/bash", "-ec"]\nRUN two\nRUN ["three", "$A"]\nLABEL a=b\nEXPOSE 80\nCMD x\n',
    )
    final = read.final
    assert final.workdir == "/srv/app"
    assert final.directories == ["/srv/app"]
    assert final.env == {"PATH": "/image", "A": "1", "B": "x"}
    assert final.user == "me:us"
    env = (("C", "c"), ("PATH", "/image"), ("A", "1"), ("B", "x"))
    assert final.steps == [
        Run(3, ("/bin/sh", "-c", "one"), "/srv", (("PATH", "/image"),)),
        Run(9, ("/bin/bash", "-ec", "two"), "/srv/app", env, "me:us"),
        Run(10, ("three", "$A"), "/srv/app", env, "me:us"),
    ]


def test_copies_are_resolved_as_docker_does(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "dir/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    read = recipe(
        tmp_path,
        "FROM termrl/host\nWORKDIR /app\nCOPY a.txt .\nCOPY a.txt /x/renamed\n"
        "COPY --chown=me --chmod=750 dir /data\n"
        'COPY *.txt many/\nADD ["b.txt", "/y/"]\nCOPY <<END /z\nhello $HOME "q"\nEND\n',
    )
    assert read.final.steps == [
        Copy(3, tmp_path / "a.txt", "/app/a.txt"),
        Copy(4, tmp_path / "a.txt", "/x/renamed"),
        Copy(5, tmp_path / "dir", "/data", True, owner="me", mode=0o750),
        Copy(6, tmp_path / "a.txt", "/app/many/a.txt"),
        Copy(6, tmp_path / "b.txt", "/app/many/b.txt"),
        Copy(7, tmp_path / "b.txt", "/y/b.txt"),
        Copy(8, None, "/z", content=b'hello  "q"\n'),
    ]


def test_stages_are_found_by_name_and_number(tmp_path: Path) -> None:
    read = recipe(
        tmp_path,
        "FROM termrl/host AS Build\nRUN make\nFROM build\nENV A=1\nFROM debian:12\n"
        "COPY --from=build /out /in\nCOPY --from=1 /x /y/\nCOPY --from=termrl/host /p /q\n",
    )
    assert read.stages[1].base == 0
    assert [stage.line for stage in read.built(read.stages[1])] == [1]
    first, second, third = read.final.steps
    assert isinstance(first, Copy)
    assert isinstance(second, Copy)
    assert isinstance(third, Copy)
    assert (first.stage, first.inner, first.target, first.into) == (0, "/out", "/in", False)
    assert (second.stage, second.into) == (1, True)
    assert third.image == Image(HOST_IMAGE)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("FROM ubuntu:24.04\n", "line 1: FROM ubuntu:24.04: there is no image ubuntu:24.04 here: import it"),
        ("FROM ubuntu:24.04\n", "base_images=ubuntu:24.04=termrl/host"),
        ("FROM termrl/host\nENTRYPOINT x\n", "line 2: the local sandbox does not have ENTRYPOINT"),
        ("FROM termrl/host\n\nHEALTHCHECK CMD x\n", "line 3: the local sandbox does not have HEALTHCHECK"),
        ("FROM --platform=linux/arm64 termrl/host\n", "FROM --platform"),
        ("FROM termrl/host\nADD https://example.org/x /x\n", "may change unseen"),
        ("FROM termrl/host\nRUN --mount=type=cache true\n", "RUN --mount"),
        ("FROM termrl/host\nCOPY --from=x /a /b\n", "COPY --from=x: there is no image x"),
        ("FROM termrl/host\nCOPY --parents a /b\n", "COPY --parents"),
        ("FROM termrl/host\nCOPY missing /b\n", "COPY missing names nothing"),
        ("FROM termrl/host\nCOPY ../secret /b\n", "leads out of"),
        ("FROM termrl/host\nCOPY Dockerfile Dockerfile /b\n", "must end with a '/'"),
        ("FROM termrl/host\nENV A\n", "ENV A has no value"),
        ("FROM termrl/host x\n", "is not FROM IMAGE"),
        ("RUN true\n", "does not begin with FROM"),
        ("", "does not begin with FROM"),
    ],
)
def test_anything_else_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UnsupportedEnvironment) as refusal:
        recipe(tmp_path, text)
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert isinstance(refusal.value, UserError)


def test_the_key_follows_the_content_and_no_name(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "file").write_text("one")
    text = "FROM termrl/host AS a\nCOPY dir /dir\nRUN true\n"
    keys = []

    def key(*context: str) -> str:
        read = recipe(tmp_path, text)
        keys.append(read.key(read.final, *context))
        return keys[-1]

    assert key("base") == key("base")
    text = text.replace("AS a", "AS other")
    assert key("base") == keys[0]
    assert key("other base") != keys[0]
    (tmp_path / "dir" / "file").write_text("two")
    key("base")
    (tmp_path / "dir" / "file").chmod(0o755)
    key("base")
    text = text.replace("RUN true", "RUN false")
    key("base")
    text += "FROM other\nRUN more\n"
    key("base")
    (tmp_path / ".dockerignore").write_text("dir/file\n")
    key("base")
    assert len(set(keys)) == len(keys) - 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"config": {"docker_image": "ubuntu:24.04"}}, "docker_image = ubuntu:24.04: there is no image"),
        ({"config": {"gpus": 2}}, "asks for 2 GPU"),
        ({"config": {"os": "windows"}}, "is for Windows"),
        ({"files": {"docker-compose.yaml": "services: {}"}}, "docker-compose.yaml"),
        ({"dockerfile": None}, "has no"),
        ({"mounts": [{"type": "volume", "source": "v", "target": "/v"}]}, "type volume"),
    ],
)
def test_a_task_that_needs_more_is_refused_before_it_starts(make_sandbox, options, named: str) -> None:
    with pytest.raises(UnsupportedEnvironment) as refusal:
        make_sandbox(**options)
    assert named in str(refusal.value)


def test_an_allowlist_is_refused_by_name(make_sandbox) -> None:
    from harbor.models.task.config import NetworkMode

    with pytest.raises(UnsupportedEnvironment, match="network_mode = allowlist"):
        make_sandbox(network=NetworkMode.ALLOWLIST)


async def test_the_hosts_image_by_name_needs_no_dockerfile(make_sandbox) -> None:
    sandbox = make_sandbox(
        dockerfile=None,
        files={"data.txt": "here"},
        config={"docker_image": "termrl/host", "workdir": "/app"},
    )
    await sandbox.start(force_build=False)
    assert (await sandbox.exec("cat /app/data.txt")).stdout == "here"
