"""The embedded engine as a child process: started, waited for, watched, ended.

It listens on loopback at a free port with a key of its own, and it never outlives the process that started
it: it ends when the pipe to its standard input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
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


@dataclass(frozen=True)
class EngineHandle:
    base_url: str
    api_key: str = field(repr=False)
    pid: int
    log_path: Path
    _process: asyncio.subprocess.Process = field(repr=False)

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def wait(self) -> NoReturn:
        """Returns never: raises `EngineDied` when the process ends."""
        await self._process.wait()
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
) -> AsyncIterator[EngineHandle]:
    """An engine for as long as the context lasts.

    If the engine has died when the context is left by an exception, `EngineDied` is raised from that.
    """
    command = [sys.executable, "-m", "termrl.engine", "--with-parent", "--state-dir", str(state_dir)]
    for name in models:
        command += ["--model", name]
    if cache_dir is not None:
        command += ["--cache-dir", str(cache_dir)]
    api_key = new_api_key()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    process = await _spawn(command, api_key, log_path)
    try:
        port = await _wait_until_ready(process, log_path)
        handle = EngineHandle(f"http://127.0.0.1:{port}", api_key, process.pid, log_path, process)
        try:
            yield handle
        except Exception as error:
            if not handle.running:
                raise EngineDied(handle._obituary()) from error
            raise
    finally:
        await _end(process)


async def _spawn(command: Sequence[str], api_key: str, log_path: Path) -> asyncio.subprocess.Process:
    with log_path.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=os.environ | {KEY_VARIABLE: api_key},
            # A group of its own: an interrupt typed at the terminal reaches the run, which ends the engine.
            process_group=0,
        )


async def _wait_until_ready(process: asyncio.subprocess.Process, log_path: Path) -> int:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
    except TimeoutError:
        raise EngineStartError(
            f"The engine did not answer within {START_SECONDS:.0f} seconds; its log is {log_path}."
        ) from None
    if not line:
        code = await process.wait()
        raise EngineStartError(f"The engine did not start (exit code {code}): {_tail(log_path)}")
    return int(json.loads(line)["port"])


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _tail(log_path: Path) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(log_path.read_text(errors="replace").splitlines()[-LOG_LINES:])
    return "(the log cannot be read)"
