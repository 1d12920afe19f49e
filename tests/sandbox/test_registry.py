"""Which content an image's name stands for, asked of registries on loopback; a real one is in test_docker."""

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from harbor.models.task.config import EnvironmentConfig, TaskConfig

import registry_server
from termrl.errors import UserError
from termrl.sandbox import registry as registry_module
from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.logins import LoginUnreadable, login_for
from termrl.sandbox.references import HUB, Reference, images_of, images_of_services, pin
from termrl.sandbox.registry import DigestUnknown, Registries

Keep = Callable[[dict[str, object]], None]


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keep:
    """Writes what `docker login` would have kept."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def write(config: dict[str, object]) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config))

    write({})
    return write


def auth() -> str:
    return base64.b64encode(f"{registry_server.USER}:{registry_server.PASSWORD}".encode()).decode()


@pytest.mark.parametrize(
    ("text", "host", "path", "tag", "pinned"),
    [
        ("ubuntu", HUB, "library/ubuntu", "latest", "ubuntu@sha256:1"),
        ("ubuntu:24.04", HUB, "library/ubuntu", "24.04", "ubuntu@sha256:1"),
        ("someone/tool:1", HUB, "someone/tool", "1", "someone/tool@sha256:1"),
        (f"{HUB}/ubuntu", HUB, "library/ubuntu", "latest", f"{HUB}/ubuntu@sha256:1"),
        ("localhost/a/b", "localhost", "a/b", "latest", "localhost/a/b@sha256:1"),
        ("127.0.0.1:5000/a:1", "127.0.0.1:5000", "a", "1", "127.0.0.1:5000/a@sha256:1"),
    ],
)
def test_a_reference_names_registry_path_and_tag(
    text: str, host: str, path: str, tag: str, pinned: str
) -> None:
    reference = Reference.parse(text)
    assert (reference.host, reference.path, reference.tag, reference.digest) == (host, path, tag, "")
    assert reference.pinned("sha256:1") == pinned
    assert Reference.parse(pinned).digest == "sha256:1"


DOCKERFILE = """\
ARG TAG=1
ARG BASE=there/base:$TAG
FROM --platform=linux/amd64 \\
    ${BASE} AS build
FROM scratch AS empty
FROM build AS again
FROM there/end:2
COPY --from=build /a /a
COPY --from=0 /a /b
COPY --from=there/tool:3 /c /c
RUN --mount=type=bind,from=there/data,target=/d true
"""


def test_every_image_that_an_environment_is_built_from_is_found_and_can_be_pinned(tmp_path: Path) -> None:
    before = tmp_path / "before"
    before.mkdir()
    (before / "Dockerfile").write_text(DOCKERFILE)
    (before / "docker-compose.yaml").write_text(
        "services:\n  main:\n    build: .\n  db:\n    image: there/db:9\n  x:\n    image: ${FILLED_IN}\n"
    )
    config = TaskConfig()
    images = images_of(before, config)
    assert images == ["there/base:1", "there/end:2", "there/tool:3", "there/data"]
    assert images_of_services(before) == ["there/db:9"]
    digests = {name: f"sha256:{number}" for number, name in enumerate([*images, "there/db:9"])}
    after = pin(before, config, digests, tmp_path / "pinned")
    expected = (
        DOCKERFILE.replace("${BASE}", "there/base@sha256:0")
        .replace("there/end:2", "there/end@sha256:1")
        .replace("there/tool:3", "there/tool@sha256:2")
        .replace("there/data", "there/data@sha256:3")
    )
    assert (after / "Dockerfile").read_text() == expected
    assert images_of_services(after) == ["there/db@sha256:4"]
    assert (before / "Dockerfile").read_text() == DOCKERFILE
    prebuilt = TaskConfig(environment=EnvironmentConfig(docker_image="there/base:1"))
    assert images_of(before, prebuilt) == ["there/base:1"]
    pin(before, prebuilt, digests, tmp_path / "prebuilt")
    assert prebuilt.environment.docker_image == "there/base@sha256:0"


def test_an_argument_without_a_value_names_no_image(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM $BASE\n")
    with pytest.raises(UnsupportedEnvironment, match="has no value: give the ARG above it a default"):
        images_of(tmp_path, TaskConfig())


@pytest.mark.usefixtures("keep")
async def test_a_tag_is_asked_for_once_and_a_digest_is_believed() -> None:
    async with registry_server.serve() as registry:
        first = registry.put("base", "1", "one")
        registries = Registries()
        assert await registries.digest(f"{registry.host}/base:1") == first
        assert await registries.digest(f"{registry.host}/base:1") == first
        assert await registries.digest(f"{registry.host}/gone@sha256:{'0' * 64}") == f"sha256:{'0' * 64}"
        assert registry.asked == ["HEAD base:1"]
        second = registry.put("base", "1", "two")
        assert second != first
        assert await Registries().digest(f"{registry.host}/base:1") == second


@pytest.mark.usefixtures("keep")
async def test_a_registry_that_does_not_say_the_digest_or_fails_for_a_moment_is_asked_on() -> None:
    async with registry_server.serve() as registry:
        digest = registry.put("base", "latest", "one")
        registry.says_digest = False
        registry.failures = 1
        assert await Registries().digest(f"{registry.host}/base") == digest
        assert registry.asked == ["HEAD base:latest", "HEAD base:latest", "GET base:latest"]


@pytest.mark.parametrize("kept", ["anonymous", "auth", "helper", "token", "helper token", "basic"])
async def test_the_challenge_is_met_with_what_docker_login_keeps(
    kept: str, keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with registry_server.serve("basic" if kept == "basic" else "bearer") as registry:
        registry.private = kept != "anonymous"
        digest = registry.put("mine/base", "1", "one")
        if kept in ("auth", "basic"):
            keep({"auths": {f"http://{registry.host}/v1/": {"auth": auth()}}})
        elif kept == "token":
            keep({"auths": {registry.host: {"identitytoken": registry_server.IDENTITY}}})
        elif kept.startswith("helper"):
            answer = {"Username": registry_server.USER, "Secret": registry_server.PASSWORD}
            if kept == "helper token":
                answer = {"Username": "<token>", "Secret": registry_server.IDENTITY}
            program = tmp_path / "docker-credential-here"
            program.write_text(
                f"#!/bin/sh\n[ \"$(cat)\" = {registry.host} ] && echo '{json.dumps(answer)}'\n"
            )
            program.chmod(0o755)
            monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
            keep({"credHelpers": {registry.host: "here"}} if kept == "helper" else {"credsStore": "here"})
        assert await Registries().digest(f"{registry.host}/mine/base:1") == digest
        if kept != "basic":
            method = "POST" if kept.endswith("token") else "GET"
            assert f"{method} token repository:mine/base:pull of {registry.host}" in registry.asked


async def test_a_password_is_sent_to_no_one_who_would_hear_it_in_the_clear(keep: Keep) -> None:
    async with registry_server.serve("bearer") as registry:
        registry.put("base", "1", "one")
        registry.realm = "http://192.0.2.1/token"
        keep({"auths": {registry.host: {"auth": auth()}}})
        with pytest.raises(DigestUnknown, match="to this login, so its content can't be told"):
            await Registries().digest(f"{registry.host}/base:1")


@pytest.mark.usefixtures("keep")
async def test_what_a_registry_does_not_tell_is_an_error_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with registry_server.serve("bearer") as registry:
        registry.private = True
        with pytest.raises(DigestUnknown, match=f"`docker login {registry.host}` with an account"):
            await Registries().digest(f"{registry.host}/base:1")
        registry.private = False
        with pytest.raises(DigestUnknown, match=r"has no image .*/base:1: look at its name and tag"):
            await Registries().digest(f"{registry.host}/base:1")
        gone = f"{registry.host}/base:1"
    monkeypatch.setattr(registry_module, "_ATTEMPTS", 1)
    with pytest.raises(DigestUnknown, match=r"can't be asked which content .* name the image by its digest"):
        await Registries().digest(gone)


def test_a_login_that_cannot_be_read_is_said(keep: Keep, tmp_path: Path) -> None:
    keep({"auths": {"a": {"auth": "?"}, "b": {}}, "credHelpers": {"c": "nowhere"}})
    assert login_for("b") is None
    assert login_for("d") is None
    with pytest.raises(LoginUnreadable, match="holds a login that can't be read"):
        login_for("a")
    with pytest.raises(LoginUnreadable, match="docker-credential-nowhere, which keeps the login for c"):
        login_for("c")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="where `docker login` keeps credentials, can't be read"):
        login_for("a")
