"""The part of the Dockerfile language that is honoured, and the refusal of the rest."""

from pathlib import Path

import pytest

from termrl.errors import UserError
from termrl.sandbox.dockerfile import Copy, Run, read_dockerfile
from termrl.sandbox.errors import UnsupportedEnvironment


def dockerfile(folder: Path, text: str) -> Path:
    path = folder / "Dockerfile"
    path.write_text(text)
    return path


def test_comments_continuations_and_both_forms_of_run_are_read(tmp_path: Path) -> None:
    recipe = read_dockerfile(
        dockerfile(
            tmp_path,
            "# a comment\nFROM termrl/host\nworkdir /app\nRUN echo one && \\\n  # inside\n\n  echo two\n"
            'WORKDIR sub\nENV A=1\nRUN ["echo", "$A"]\nENV B old form\n',
        )
    )
    assert recipe.workdir == "/app/sub"
    assert recipe.directories == ["/app", "/app/sub"]
    assert recipe.env == {"A": "1", "B": "old form"}
    assert recipe.steps == [
        Run(4, ("/bin/sh", "-c", "echo one && echo two"), "/app", ()),
        Run(10, ("echo", "$A"), "/app/sub", (("A", "1"),)),
    ]


def test_copies_are_resolved_as_docker_does(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "dir/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    recipe = read_dockerfile(
        dockerfile(
            tmp_path,
            "FROM termrl/host\nWORKDIR /app\nCOPY a.txt .\nCOPY a.txt /x/renamed\nCOPY dir /data\n"
            'COPY *.txt many/\nCOPY ["b.txt", "/y/"]\n',
        )
    )
    assert recipe.steps == [
        Copy(3, tmp_path / "a.txt", "/app/a.txt", False),
        Copy(4, tmp_path / "a.txt", "/x/renamed", False),
        Copy(5, tmp_path / "dir", "/data", True),
        Copy(6, tmp_path / "a.txt", "/app/many/a.txt", False),
        Copy(6, tmp_path / "b.txt", "/app/many/b.txt", False),
        Copy(7, tmp_path / "b.txt", "/y/b.txt", False),
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("FROM ubuntu:24.04\n", "line 1: FROM ubuntu:24.04"),
        ("FROM termrl/host\nFROM termrl/host\n", "line 2: FROM"),
        ("FROM termrl/host AS build\n", "line 1: FROM"),
        ("FROM termrl/host\n\nUSER nobody\n", "line 3: the local sandbox does not have USER"),
        ("FROM termrl/host\nADD https://example.org/x /x\n", "does not have ADD"),
        ("FROM termrl/host\nRUN --mount=type=cache true\n", "RUN --mount"),
        ("FROM termrl/host\nRUN <<EOF\ntrue\nEOF\n", "RUN <<EOF"),
        ("FROM termrl/host\nCOPY --from=x /a /b\n", "COPY --from"),
        ("FROM termrl/host\nCOPY missing /b\n", "COPY missing names nothing"),
        ("FROM termrl/host\nCOPY ../secret /b\n", "leads out of"),
        ("FROM termrl/host\nENV A=${B:-c}\n", "${NAME} only"),
        ("RUN true\n", "begin it with FROM termrl/host"),
        ("", "begin it with FROM termrl/host"),
    ],
)
def test_anything_else_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UnsupportedEnvironment) as refusal:
        read_dockerfile(dockerfile(tmp_path, text))
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert isinstance(refusal.value, UserError)


def test_the_key_follows_the_content(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "file").write_text("one")
    path = dockerfile(tmp_path, "FROM termrl/host\nCOPY dir /dir\nRUN true\n")
    first = read_dockerfile(path).key("base")
    assert read_dockerfile(path).key("base") == first
    assert read_dockerfile(path).key("other base") != first
    (tmp_path / "dir" / "file").write_text("two")
    second = read_dockerfile(path).key("base")
    (tmp_path / "dir" / "file").chmod(0o755)
    third = read_dockerfile(path).key("base")
    path.write_text("FROM termrl/host\nCOPY dir /dir\nRUN false\n")
    assert len({first, second, third, read_dockerfile(path).key("base")}) == 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"config": {"docker_image": "ubuntu:24.04"}}, "docker_image = ubuntu:24.04"),
        ({"config": {"gpus": 2}}, "asks for 2 GPU"),
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
