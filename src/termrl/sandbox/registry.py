"""Which content a registry has under a name now: the digest of the manifest that the tag stands at.

Asked as clients that pull ask (the distribution protocol, version 2): a HEAD for the manifest, the bearer
token that the registry sends one to fetch, the credentials that `docker login` keeps. Nothing is pulled. A
reference that is pinned by its digest is believed. Where a registry can't be asked the answer is an error:
content that nobody knows is no key.
"""

import asyncio
import base64
import hashlib
import ipaddress
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from termrl.errors import UserError
from termrl.sandbox.logins import Login, login_for
from termrl.sandbox.references import HUB, Reference

_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DIGEST = re.compile(r"[a-z0-9]+:[0-9a-f]{32,}")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_SECONDS = 20.0
_ATTEMPTS = 3
_AT_ONCE = 8


class DigestUnknown(UserError):
    """Whether a snapshot is still of the image's content can't be told."""


class Registries:
    """Asks each registry for each name once, whatever it answers, and a few at a time."""

    def __init__(self) -> None:
        self._answers: dict[str, str | UserError] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def digest(self, text: str) -> str:
        reference = Reference.parse(text)
        if reference.digest:
            return reference.digest
        async with self._asking.setdefault(text, asyncio.Lock()):
            if text not in self._answers:
                try:
                    self._answers[text] = await self._ask(text, reference)
                except UserError as error:
                    self._answers[text] = error
        answer = self._answers[text]
        if isinstance(answer, UserError):
            raise answer
        return answer

    async def _ask(self, text: str, reference: Reference) -> str:
        login = await asyncio.to_thread(login_for, reference.host)
        async with (
            self._places,
            httpx.AsyncClient(timeout=_SECONDS, follow_redirects=True) as client,
        ):
            response = await _reach(client, text, reference, login)
        if response.status_code in (401, 403):
            raise DigestUnknown(
                f"The registry {reference.host} does not show {text} to "
                f"{'this login' if login else 'everybody'}, so its content can't be told: "
                f"`docker login {reference.host}` with an account that may pull it, or name it by its digest."
            )
        if response.status_code == 404:
            raise DigestUnknown(
                f"The registry {reference.host} has no image {text}: look at its name and tag in task.toml "
                "or the Dockerfile."
            )
        if response.status_code != 200:
            raise _unreachable(text, reference, f"it answers {response.status_code}")
        return _said(response) or f"sha256:{hashlib.sha256(response.content).hexdigest()}"


async def _reach(
    client: httpx.AsyncClient, text: str, reference: Reference, login: Login | None
) -> httpx.Response:
    """The registry's answer; on loopback it may speak plainly, as Docker lets it."""
    host = f"registry-1.{HUB}" if reference.host == HUB else reference.host
    schemes = ("https", "http") if _on_loopback(host) else ("https",)
    cause = ""
    for attempt in range(_ATTEMPTS):
        for scheme in schemes:
            address = f"{scheme}://{host}/v2/{reference.path}/manifests/{reference.tag}"
            try:
                response = await _manifest(client, address, reference, login)
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # the last: no JSON for a token
                cause = str(error) or type(error).__name__
                continue
            if response.status_code < 500 and response.status_code != 429:
                return response
            cause = f"it answers {response.status_code}"
        await asyncio.sleep(0.5 * 2**attempt if attempt < _ATTEMPTS - 1 else 0)
    raise _unreachable(text, reference, cause)


async def _manifest(
    client: httpx.AsyncClient, address: str, reference: Reference, login: Login | None
) -> httpx.Response:
    headers = {"Accept": ", ".join(_MANIFESTS)}
    response = await client.head(address, headers=headers)
    if response.status_code == 401:
        headers |= await _authorization(client, response, reference, login)
        response = await client.head(address, headers=headers)
    if response.status_code == 405 or (response.status_code == 200 and not _said(response)):
        response = await client.get(address, headers=headers)
    return response


def _said(response: httpx.Response) -> str:
    """The digest that the registry names; where it names none it is that of the manifest's bytes."""
    digest: str = response.headers.get("Docker-Content-Digest", "")
    return digest if _DIGEST.fullmatch(digest) else ""


async def _authorization(
    client: httpx.AsyncClient, refused: httpx.Response, reference: Reference, login: Login | None
) -> dict[str, str]:
    """What the registry's challenge asks for; nothing where it can't be had."""
    kind, _, rest = refused.headers.get("WWW-Authenticate", "").partition(" ")
    if kind.lower() == "basic" and login is not None and login.username:
        pair = base64.b64encode(f"{login.username}:{login.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    values = dict(_CHALLENGE.findall(rest))
    realm = values.get("realm", "")
    if kind.lower() != "bearer" or not _may_hold_a_secret(realm):
        return {}
    asked = {"scope": values.get("scope") or f"repository:{reference.path}:pull"}
    asked |= {"service": values["service"]} if "service" in values else {}
    response = await _ask_for_token(client, realm, asked, login)
    if response.status_code != 200:
        return {}
    granted: Mapping[str, Any] = response.json()
    token = granted.get("token") or granted.get("access_token")
    return {"Authorization": f"Bearer {token}"} if token else {}


async def _ask_for_token(
    client: httpx.AsyncClient, realm: str, asked: dict[str, str], login: Login | None
) -> httpx.Response:
    if login is not None and login.identity_token:
        grant = {"grant_type": "refresh_token", "client_id": "termrl", "refresh_token": login.identity_token}
        return await client.post(realm, data={**asked, **grant})
    basic = httpx.BasicAuth(login.username, login.password) if login is not None else None
    return await client.get(realm, params=asked, auth=basic)


def _may_hold_a_secret(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and _on_loopback(parts.netloc))


def _on_loopback(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _unreachable(text: str, reference: Reference, cause: str) -> DigestUnknown:
    return DigestUnknown(
        f"The registry {reference.host} can't be asked which content {text} has now ({cause}), so that a "
        "snapshot of it could be stale: try again when it answers, or name the image by its digest "
        f"({reference.name}@sha256:...)."
    )
