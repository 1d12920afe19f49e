"""The embedded engine as a child process: started, waited for, watched, ended.

It listens on loopback at a free port with a key of its own, and it never outlives the process that started
it: it ends when the pipe to its standard input closes. Its modules take seconds to import, so a process can
be prepared while the one that will need it is still busy with its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from termrl.engine.keys import KEY_VARIABLE, new_api_key
from termrl.errors import UserError

START_SECONDS = 300.0
END_SECONDS = 5.0
LOG_LINES = 12


class EngineDied(Exception):
    """The engine's process ended by itself."""


class EngineStartError(UserError):
    """The engine's process did not come up."""


class PreparedEngine:
    """A process that imports what an engine needs, then waits to be told what to serve."""

    def __init__(self) -> None:
        self.api_key = new_api_key()
        self._first_words = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "termrl.engine", "--when-told"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._first_words,
            env=os.environ | {KEY_VARIABLE: self.api_key},
            # A group of its own: an interrupt typed at the terminal reaches the run, which ends the engine.
            process_group=0,
        )

    async def serve(self, arguments: Sequence[str], log_path: Path) -> int:
        """Tells it what to serve and where to log; gives the port once it listens."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        log_path.parent.mkdir(parents=True, exist_ok=True)
        told = json.dumps({"arguments": list(arguments), "log": str(log_path.absolute())})
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(told.encode() + b"\n")
            self.process.stdin.flush()
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await asyncio.to_thread(self.process.stdout.readline)
        except TimeoutError:
            raise EngineStartError(
                f"The engine did not answer within {START_SECONDS:.0f} seconds; its log is {log_path}."
            ) from None
        if not line:
            code = await asyncio.to_thread(self.process.wait)
            raise EngineStartError(
                f"The engine did not start (exit code {code}): {self._early()}{_tail(log_path)}"
            )
        return int(json.loads(line)["port"])

    async def end(self) -> None:
        self.process.terminate()
        try:
            await asyncio.to_thread(self.process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
        self._close()

    def abandon(self) -> None:
        """Ends one that was never needed; nothing is lost with it."""
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self._first_words):
            if stream is not None:
                stream.close()

    def _early(self) -> str:
        self._first_words.seek(0)
        return self._first_words.read().decode(errors="replace")


@dataclass(frozen=True)
class EngineHandle:
    base_url: str
    api_key: str = field(repr=False)
    pid: int
    log_path: Path
    _process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    async def wait(self) -> NoReturn:
        """Returns never: raises `EngineDied` when the process ends."""
        await asyncio.to_thread(self._process.wait)
        raise EngineDied(self._obituary())

    def _obituary(self) -> str:
        return (
            f"The engine process {self.pid} ended with code {self._process.returncode}. "
            f"The end of its log, {self.log_path}:\n{_tail(self.log_path)}"
        )


@asynccontextmanager
async def start_engine(
    state_dir: Path,
    *,
    models: Sequence[str] = ("termrl/tiny",),
    log_path: Path,
    cache_dir: Path | None = None,
    prepared: PreparedEngine | None = None,
) -> AsyncIterator[EngineHandle]:
    """An engine for as long as the context lasts, in the process that was prepared for it if there is one.

    If the engine has died when the context is left by an exception, `EngineDied` is raised from that.
    """
    arguments = ["--state-dir", str(state_dir)]
    for name in models:
        arguments += ["--model", name]
    if cache_dir is not None:
        arguments += ["--cache-dir", str(cache_dir)]
    engine = prepared or PreparedEngine()
    process = engine.process
    try:
        port = await engine.serve(arguments, log_path)
        handle = EngineHandle(f"http://127.0.0.1:{port}", engine.api_key, process.pid, log_path, process)
        try:
            yield handle
        except Exception as error:
            if not handle.running:
                raise EngineDied(handle._obituary()) from error
            raise
    finally:
        await engine.end()


def _tail(log_path: Path) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(log_path.read_text(errors="replace").splitlines()[-LOG_LINES:])
    return "(the log cannot be read)"
