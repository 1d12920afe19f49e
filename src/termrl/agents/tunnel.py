"""A tunnel of the user's own, by which sandboxes on other machines reach the gateway.

The program is started with the gateway's local address in place of `{url}`, and the first other address it
prints is the one that leads here from outside. It is ended with the gateway.
"""

import asyncio
import contextlib
import re
import shlex
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process

from termrl.errors import UserError

_ADDRESS = re.compile(r"https?://[^\s\"'<>|]+")
_SECONDS = 60.0


class TunnelError(UserError):
    """The tunnel did not come up."""


class Tunnel:
    def __init__(self, process: Process, url: str, reading: "asyncio.Task[None]") -> None:
        self._process = process
        self._reading = reading
        self.url = url

    @classmethod
    async def start(cls, command: str, local_url: str, seconds: float = _SECONDS) -> "Tunnel":
        words = [word.replace("{url}", local_url) for word in shlex.split(command)]
        try:
            process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
        except OSError as error:
            raise TunnelError(f"gateway_tunnel can't be started: {words[0]}: {error.strerror}.") from error
        said: list[str] = []
        try:
            async with asyncio.timeout(seconds):
                url = await _find_address(process, local_url, said)
        except TimeoutError:
            url = None
        if url is None:
            await _end(process)
            last = said[-1] if said else "nothing"
            raise TunnelError(f"gateway_tunnel printed no address in {seconds:.0f} s; its last words: {last}")
        return cls(process, url, asyncio.create_task(_drain(process)))

    async def stop(self) -> None:
        self._reading.cancel()
        await _end(self._process)


async def _find_address(process: Process, local_url: str, said: list[str]) -> str | None:
    assert process.stdout is not None
    async for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip()
        said.append(line)
        for found in _ADDRESS.findall(line):
            if not found.startswith(local_url):
                return str(found).rstrip("/.,")
    return None


async def _drain(process: Process) -> None:
    """What it says later is of no use, but a full pipe would stop it."""
    assert process.stdout is not None
    async for _ in process.stdout:
        pass


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(5):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
