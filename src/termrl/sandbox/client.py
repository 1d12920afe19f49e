"""Starts the keeper and talks to it: one keeper per event loop, started on first use, gone with the process.

Requests are awaited; any number may be under way. A request that is cancelled ends what it started.
"""

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from termrl.sandbox.errors import SandboxLost, SandboxRefused
from termrl.sandbox.keeper.messages import decode, encode
from termrl.sandbox.keeper.probe import Findings
from termrl.sandbox.labels import current_label

_PACKAGE_HOME = Path(__file__).parent
_START = "import sys; sys.path.insert(0, sys.argv[4]); from keeper.server import main; main()"
_LEAVING_SECONDS = 5.0
_keepers: dict[asyncio.AbstractEventLoop, "KeeperClient"] = {}


def keeper_command(*arguments: str, start: str = _START) -> list[str]:
    """A bare Python: no site-packages, no user settings, nothing from the environment."""
    return [sys.executable, "-I", "-S", "-c", start, *arguments, str(_PACKAGE_HOME)]


class HostFindings(Findings):
    """With the host's id for root inside, as seen by whoever writes files for a sandbox."""

    owner: int


class KeeperClient(asyncio.Protocol):
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox = bytearray()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._transport: asyncio.Transport | None = None
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the keeper)
        self._process: subprocess.Popen[bytes] | None = None
        self._findings: HostFindings | None = None
        self._ended = False
        # Held while a layer is built, so that this loop builds each one once.
        self.builds: dict[str, asyncio.Lock] = {}
        self._started = self._loop.create_task(self._start())

    @classmethod
    async def of_this_loop(cls) -> "KeeperClient":
        """The keeper of the running loop. Those of loops that are closed are let go."""
        for loop in [loop for loop in _keepers if loop.is_closed()]:
            _keepers.pop(loop).close()
        loop = asyncio.get_running_loop()
        keeper = _keepers.get(loop)
        if keeper is None or keeper._ended:
            keeper = _keepers[loop] = cls()
        # Everyone who came while it was starting waits for the one start.
        await asyncio.shield(keeper._started)
        return keeper

    async def _start(self) -> None:
        try:
            await self._launch()
        except BaseException:
            self._ended = True  # so that the next one who asks gets another try
            raise

    async def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 (a vfork, done at once)
                keeper_command(str(theirs.fileno()), str(os.getpid()), current_label().as_name()),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                env={"LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        self._transport, _ = await self._loop.create_connection(lambda: self, sock=ours)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def findings(self) -> HostFindings:
        """What this host allows, asked once."""
        if self._findings is None:
            self._findings = cast(HostFindings, await self.ask("probe"))
        return self._findings

    async def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Have one thing done and return the answer."""
        if self._transport is None or self._ended:
            raise SandboxLost(self._why_it_ended())
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting[number] = answer
        self._transport.write(encode({"id": number, "op": operation, **fields}))
        try:
            reply = await answer
        except asyncio.CancelledError:
            if not self._ended:
                self._transport.write(encode({"id": 0, "op": "cancel", "cancelled": number}))
            raise
        finally:
            self._waiting.pop(number, None)
        if "lost" in reply:
            raise SandboxLost(reply["lost"])
        if "error" in reply:
            raise SandboxRefused(reply["error"])
        return reply

    def close(self) -> None:
        """End the keeper, and with it every sandbox it has."""
        self._ended = True
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_LEAVING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def data_received(self, data: bytes) -> None:
        self._inbox += data
        for message in decode(self._inbox):
            answer = self._waiting.get(message.pop("id"))
            if answer is not None and not answer.done():
                answer.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SandboxLost(self._why_it_ended()))

    def _why_it_ended(self) -> str:
        self._complaints.seek(0)
        complaint = self._complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"the sandbox keeper ended unexpectedly{': ' + complaint if complaint else ''}"
