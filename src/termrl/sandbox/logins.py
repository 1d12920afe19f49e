"""The credentials that `docker login` keeps: in its config.json, or with the helper that this names."""

import base64
import binascii
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from termrl.errors import UserError
from termrl.sandbox.references import HUB

_HELPER_SECONDS = 30
_TOKEN_USER = "<token>"
"""What a helper gives as the user when its secret is a token and no password."""


class LoginUnreadable(UserError):
    """What `docker login` left behind can't be used."""


@dataclass(frozen=True)
class Login:
    """A name with its password, or an identity token alone."""

    username: str = ""
    password: str = ""
    identity_token: str = ""


def login_for(host: str) -> Login | None:
    """What is kept for a registry, or None where nobody has logged in."""
    path = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LoginUnreadable(
            f"{path}, where `docker login` keeps credentials, can't be read: {error}."
        ) from error
    names = {_bare(name): name for name in (*kept.get("credHelpers", {}), *kept.get("auths", {}))}
    name = names.get(f"index.{HUB}" if host == HUB else host, names.get(host))
    helper = kept.get("credHelpers", {}).get(name) or kept.get("credsStore")
    if helper:
        return _from_helper(helper, name or (f"https://index.{HUB}/v1/" if host == HUB else host))
    entry = kept.get("auths", {}).get(name) if name else None
    return _from_entry(entry, path) if entry else None


def _bare(name: str) -> str:
    """Entries are hosts, or the addresses that older clients wrote."""
    return name.partition("://")[2].partition("/")[0] if "://" in name else name.partition("/")[0]


def _from_entry(entry: dict[str, Any], path: Path) -> Login | None:
    if entry.get("identitytoken"):
        return Login(identity_token=entry["identitytoken"])
    if entry.get("username"):
        return Login(entry["username"], entry.get("password", ""))
    if not entry.get("auth"):
        return None
    try:
        username, _, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise LoginUnreadable(
            f"{path} holds a login that can't be read ({error}): run `docker login` again."
        ) from error
    return Login(username, password.rstrip("\0"))


def _from_helper(helper: str, name: str) -> Login | None:
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=name, capture_output=True, text=True, timeout=_HELPER_SECONDS, check=False
        )
        if done.returncode != 0:  # also how it says that it has nothing for this registry
            return None
        answer = json.loads(done.stdout)
        username, secret = str(answer["Username"]), str(answer["Secret"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        raise LoginUnreadable(
            f"{program}, which keeps the login for {name}, does not answer ({error}): mend it or take it out "
            "of docker's config.json."
        ) from error
    return Login(identity_token=secret) if username == _TOKEN_USER else Login(username, secret)
