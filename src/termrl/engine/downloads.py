"""Checkpoints for other programs: addresses that can be fetched without the key, for a while, and the files.

An address carries the time until which it holds and a signature made with the key. It opens one file of one
checkpoint and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from aiohttp import web

from termrl.engine.checkpoints import CheckpointPath
from termrl.engine.core import Engine
from termrl.engine.exports import file_bytes, file_names
from termrl.errors import UserError

HOLDS_SECONDS = 3600


class DownloadError(UserError):
    """There is nothing to download under this address."""


class Downloads:
    def __init__(
        self, engine: Engine, do: Callable[[Callable[[], Any]], Awaitable[Any]], api_key: bytes
    ) -> None:
        self._engine = engine
        self._do = do
        self._secret = hashlib.blake2b(api_key, person=b"downloads").digest()

    def routes(self, api: str) -> list[web.RouteDef]:
        checkpoint = f"{api}/training_runs/{{run}}/checkpoints/{{kind}}/{{name}}"
        self._prefix = f"{api}/downloads"
        return [
            web.get(f"{checkpoint}/external_weights_urls", self._urls),
            web.get(f"{self._prefix}/{{run}}/{{kind}}/{{name}}/{{file}}", self._download),
        ]

    def is_signed(self, request: web.Request) -> bool:
        if request.method != "GET" or not request.path.startswith(f"{self._prefix}/"):
            return False
        until = request.query.get("until", "")
        if not until.isdecimal() or len(until) > 12 or int(until) < time.time():
            return False
        return hmac.compare_digest(self._sign(request.path, until), request.query.get("signature", ""))

    def _sign(self, path: str, until: str) -> str:
        return hmac.new(self._secret, f"{path}\n{until}".encode(), "sha256").hexdigest()

    async def _urls(self, request: web.Request) -> web.Response:
        path = checkpoint_path(request)

        def names() -> tuple[str, ...]:
            info = self._engine.checkpoints.info(path)
            return file_names(self._engine.base_model(info.base_model), info.spec)

        until = int(time.time()) + HOLDS_SECONDS
        urls = {}
        for name in await self._do(names):
            place = f"{self._prefix}/{path.run}/{path.kind}/{path.name}/{name}"
            address = f"{request.scheme}://{request.host}{quote(place, safe='/:')}"
            urls[name] = f"{address}?until={until}&signature={self._sign(place, str(until))}"
        return web.json_response({"urls": urls, "expires": datetime.fromtimestamp(until, UTC).isoformat()})

    async def _download(self, request: web.Request) -> web.Response:
        path, file = checkpoint_path(request), request.match_info["file"]

        def content() -> bytes:
            info, lora, _ = self._engine.checkpoints.load(path)
            base = self._engine.base_model(info.base_model)
            if file not in file_names(base, info.spec):
                raise DownloadError(f"{path} has no file {file!r}.")
            return file_bytes(file, base, info.spec, lora)

        return web.Response(body=await self._do(content), content_type="application/octet-stream")


def checkpoint_path(request: web.Request) -> CheckpointPath:
    path = CheckpointPath(*(request.match_info[part] for part in ("run", "kind", "name")))
    path.check()
    return path
