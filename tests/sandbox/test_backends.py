"""`environment_type=`: every name, its settings, and the refusal of what would be ignored."""

from pathlib import Path
from typing import Any

import pytest
from harbor.models.environment_type import EnvironmentType

from termrl.config import EvalConfig
from termrl.sandbox.backends import Backend, BadEnvironmentSetting, backend_names, parse_pairs
from termrl.sandbox.choice import choose_backend, environment_settings
from termrl.sandbox.errors import UnknownBackend, UnsupportedEnvironment
from termrl.sandbox.factory import default_sandbox_factory, factory_named
from termrl.sandbox.fitness import refuse_unfit
from termrl.sandbox.labels import labelled_run
from termrl.tasks.task import HarborTask, load_harbor_task


def write_task(folder: Path, toml: str = "", dockerfile: str = "FROM termrl/host\n") -> HarborTask:
    for path, text in {
        "task.toml": toml,
        "instruction.md": "do it\n",
        "tests/test.sh": "true\n",
        "environment/Dockerfile": dockerfile,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return load_harbor_task(folder)


def test_every_environment_of_the_installed_harbor_answers_to_its_name() -> None:
    assert {kind.value for kind in EnvironmentType} <= set(backend_names())
    for name in backend_names():
        backend = Backend(name, {"some": "setting"})
        backend.check()
        config = backend.environment_config(lifetime=100)
        assert config.kwargs["some"] == "setting"
        assert config.import_path is not None or config.type == EnvironmentType(name)


def test_lifetimes_and_labels_go_under_each_backends_own_name() -> None:
    with labelled_run("mine"):
        modal = Backend("modal").environment_config(lifetime=100).kwargs
        daytona = Backend("daytona", {"labels": {"a": "b"}}).environment_config(lifetime=100).kwargs
    assert modal["sandbox_timeout_secs"] == 100
    assert modal["labels"]["termrl.run"] == "mine"
    assert daytona["labels"]["a"] == "b"
    assert daytona["labels"]["termrl.run"] == "mine"
    assert Backend("local", sandbox_timeout=7).environment_config(lifetime=100).kwargs["lifetime"] == 7


@pytest.mark.parametrize(
    ("settings", "refusal", "named"),
    [
        ({"environment_type": "dokcer"}, UnknownBackend, "did you mean docker"),
        ({"environment_type": "spaceship"}, UnknownBackend, "there are local, "),
        ({"environment_type": "no.module:name"}, UnknownBackend, "can't be imported"),
        ({"environment_type": "e2b", "sandbox_timeout": 5}, BadEnvironmentSetting, "no lifetime"),
        ({"environment_kwargs": ("novalue",)}, BadEnvironmentSetting, "not NAME=VALUE"),
        ({"environment_type": "docker", "base_images": ("a=b",)}, BadEnvironmentSetting, "base_images"),
    ],
)
def test_what_would_be_ignored_is_refused(settings: dict[str, Any], refusal: Any, named: str) -> None:
    with pytest.raises(refusal, match=named):
        choose_backend(EvalConfig(**settings))


def test_settings_reach_the_environment() -> None:
    pairs = parse_pairs(("a=1", "b=text", "c=[1, 2]", "d=x=y"), "environment_kwargs", as_json=True)
    assert pairs == {"a": 1, "b": "text", "c": [1, 2], "d": "x=y"}
    config = EvalConfig(environment_kwargs=("pids_limit=50",), base_images=("ubuntu:24.04=termrl/host",))
    chosen = choose_backend(config)
    assert chosen.kwargs == {"pids_limit": 50, "base_images": {"ubuntu:24.04": "termrl/host"}}
    told = environment_settings(chosen, [])
    assert told["environment"] == "termrl.sandbox.local:LocalEnvironment"
    assert dict(told["environment_settings"])["pids_limit"] == 50


def test_a_factory_is_handed_over_and_lives_as_long_as_the_longest_task(tmp_path: Path) -> None:
    short = write_task(tmp_path / "short", "[agent]\ntimeout_sec = 10\n")
    long = write_task(tmp_path / "long", "[agent]\ntimeout_sec = 9000\n")
    told = environment_settings(choose_backend(EvalConfig(), default_sandbox_factory), [short, long])
    settings = dict(told["environment_settings"])
    assert factory_named(settings["factory"]) is default_sandbox_factory
    assert settings["lifetime"] > 9000 + 600
    assert environment_settings(choose_backend(EvalConfig()), [short, long])["environment_settings"]


@pytest.mark.parametrize(
    ("toml", "dockerfile", "named"),
    [
        ("[environment]\ngpus = 1\n", "FROM termrl/host\n", "asks for 1 GPU"),
        ("", "FROM ubuntu:1\n", "there is no image ubuntu:1"),
        ("", "FROM termrl/host\nENTRYPOINT x\n", "ENTRYPOINT"),
        (
            '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n',
            "FROM termrl/host\n",
            "allowlist",
        ),
        ('[agent]\nnetwork_mode = "no-network"\n', "FROM termrl/host\n", "network"),
    ],
)
def test_unfit_tasks_are_refused_before_anything_starts(
    tmp_path: Path, toml: str, dockerfile: str, named: str
) -> None:
    good, bad = write_task(tmp_path / "good"), write_task(tmp_path / "bad", toml, dockerfile)
    refuse_unfit([good], Backend("local"))
    with pytest.raises(UnsupportedEnvironment, match=named) as refusal:
        refuse_unfit([good, bad], Backend("local"))
    assert "bad" in str(refusal.value)
