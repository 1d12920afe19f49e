"""What set-up installs: pinned versions with hashes and no addresses, small, without torch."""

import importlib.util
import os
import re
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-dev.lock")
PIN = re.compile(r"^([a-z0-9._-]+)==(\S+)( ; [^\\]+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def pins(lock: str) -> dict[str, str]:
    return {
        match[1]: match[2] for line in (ROOT / lock).read_text().splitlines() if (match := PIN.match(line))
    }


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_versions_and_hashes_and_nothing_else(lock: str) -> None:
    previous_is_pin = False
    for line in (ROOT / lock).read_text().splitlines():
        assert PIN.match(line) or HASH.match(line), line
        assert not (previous_is_pin and PIN.match(line)), f"no hash before {line}"
        previous_is_pin = bool(PIN.match(line))


def test_the_locks_agree_on_every_version() -> None:
    default, dev = pins("requirements.lock"), pins("requirements-dev.lock")
    assert default.items() <= dev.items()


def test_the_locks_hold_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    backend = project["build-system"]["requires"]
    asked = {
        "requirements.lock": [*project["project"]["dependencies"], *backend, "editables"],
        "requirements-dev.lock": project["project"]["optional-dependencies"]["dev"],
    }
    for lock, requirements in asked.items():
        locked = pins(lock)
        for requirement in map(Requirement, requirements):
            version = locked.get(canonicalize_name(requirement.name))
            assert version is not None, f"{requirement} is not in {lock}: run `make lock`"
            assert version in requirement.specifier, f"{requirement} is {version} in {lock}: run `make lock`"


def test_the_default_install_has_no_torch() -> None:
    assert "torch" not in pins("requirements.lock")
    assert importlib.util.find_spec("torch") is None


def test_the_default_install_is_under_1_5_gb_on_disk() -> None:
    """Of what is installed here, that which the default lock names."""
    seen: dict[int, int] = {}
    for name in pins("requirements.lock"):
        try:
            files = distribution(name).files or []
        except PackageNotFoundError:
            continue  # for another system
        for file in files:
            with suppress(FileNotFoundError):  # a compiled file that has not been needed yet
                status = os.lstat(file.locate())
                seen[status.st_ino] = status.st_blocks * 512
    assert 0.5e9 < sum(seen.values()) < 1.5e9
