"""A registry on loopback, as far as manifests go: tags that can be moved, and the three ways of being asked
for credentials (`open`, `basic`, `bearer`)."""

import base64
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

USER, PASSWORD = "me", "sesame"
IDENTITY = "identity-token"
TYPE = "application/vnd.oci.image.index.v1+json"


@dataclass
class Registry:
    challenge: str = "open"
    host: str = ""
    realm: str = ""
    private: bool = False
    says_digest: bool = True
    failures: int = 0
    """So many requests are answered 503 before it recovers."""
    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    granted: set[str] = field(default_factory=set)

    def put(self, path: str, tag: str, content: str) -> str:
        """Moves the tag to other content; gives its digest."""
        self.manifests[path, tag] = content.encode()
        return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"

    async def manifest(self, request: web.Request) -> web.Response:
        path, tag = request.match_info["path"], request.match_info["tag"]
        self.asked.append(f"{request.method} {path}:{tag}")
        if self.failures:
            self.failures -= 1
            return web.Response(status=503)
        if not self._allowed(request, path):
            words = f'Bearer realm="{self.realm}",service="{self.host}",scope="repository:{path}:pull"'
            challenge = 'Basic realm="here"' if self.challenge == "basic" else words
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        content = self.manifests.get((path, tag))
        if content is None or TYPE not in request.headers.get("Accept", ""):
            return web.Response(status=404)
        digest = {"Docker-Content-Digest": f"sha256:{hashlib.sha256(content).hexdigest()}"}
        return web.Response(
            body=content, headers={"Content-Type": TYPE, **(digest if self.says_digest else {})}
        )

    def _allowed(self, request: web.Request, path: str) -> bool:
        said = request.headers.get("Authorization", "")
        if self.challenge == "bearer":
            return said.removeprefix("Bearer ") in {f"{token}:{path}" for token in self.granted}
        return self.challenge == "open" or said == basic()

    async def token(self, request: web.Request) -> web.Response:
        form = await request.post()
        asked = form if request.method == "POST" else request.query
        self.asked.append(f"{request.method} token {asked.get('scope')} of {asked.get('service')}")
        known = request.headers.get("Authorization") == basic() or form.get("refresh_token") == IDENTITY
        if self.private and not known:
            return web.Response(status=401)
        token = f"token-{len(self.granted)}"
        self.granted.add(token)
        path = str(asked["scope"]).split(":")[1]
        return web.json_response({"access_token" if request.method == "POST" else "token": f"{token}:{path}"})


def basic() -> str:
    return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@asynccontextmanager
async def serve(challenge: str = "open") -> AsyncIterator[Registry]:
    registry = Registry(challenge)
    application = web.Application()
    application.add_routes(
        [
            web.get("/v2/{path:.+}/manifests/{tag}", registry.manifest),
            web.route("*", "/token", registry.token),
        ]
    )
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    registry.host = f"127.0.0.1:{runner.addresses[0][1]}"
    registry.realm = f"http://{registry.host}/token"
    try:
        yield registry
    finally:
        await runner.cleanup()
