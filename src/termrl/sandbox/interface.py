"""The one small protocol for a machine that commands run in, and its form over any Harbor environment.

`run_command` and the file calls never raise for what happened inside: that is in the result. They raise when
the sandbox itself is lost. The other direction, any `SandboxInterface` as a Harbor environment, is `bridge`.
"""

import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from termrl.sandbox.errors import CommandTimeout, SandboxLost

if TYPE_CHECKING:  # Harbor is heavy, and the protocol has nothing to do with it
    from harbor.environments.base import BaseEnvironment

TIMEOUT_EXIT_CODE = 124


@dataclass(frozen=True)
class SandboxResult:
    stdout: str
    stderr: str
    exit_code: int


@runtime_checkable
class SandboxInterface(Protocol):
    async def send_heartbeat(self) -> None:
        """Say that the sandbox is still wanted; raises where it is gone."""

    async def run_command(
        self,
        command: str,
        workdir: str | None = None,
        timeout: int = 60,
        max_output_bytes: int | None = None,
    ) -> SandboxResult:
        """Run `command` in a shell; exit code 124 where it ran past `timeout` and was ended.

        Of output beyond `max_output_bytes` the beginning and the end are kept, with what was cut between.
        """

    async def read_file(self, path: str, max_bytes: int | None = None, timeout: int = 60) -> SandboxResult:
        """The file's text as `stdout`; where it can't be read, a non-zero exit code and why in `stderr`."""

    async def write_file(
        self, path: str, content: str | bytes, executable: bool = False, timeout: int = 60
    ) -> SandboxResult: ...

    async def cleanup(self) -> None:
        """End the sandbox. Safe to call again."""


SandboxFactory = Callable[[Path, int], Awaitable[SandboxInterface]]
"""Makes a sandbox from a task's `environment/` directory, to live for at least so many seconds."""


class HarborSandbox:
    """Serves a started Harbor environment as a `SandboxInterface`."""

    def __init__(self, environment: "BaseEnvironment", ended: Callable[[], None] = lambda: None) -> None:
        """`ended` is called when the sandbox is gone, for what its maker has to put away."""
        self.environment = environment
        self._ended = ended

    async def send_heartbeat(self) -> None:
        result = await self.environment.exec("true", timeout_sec=60)
        if result.return_code != 0:
            raise SandboxLost(f"The sandbox {self.environment.session_id} no longer runs commands.")

    async def run_command(
        self,
        command: str,
        workdir: str | None = None,
        timeout: int = 60,
        max_output_bytes: int | None = None,
    ) -> SandboxResult:
        try:
            result = await self.environment.exec(command, cwd=workdir, timeout_sec=timeout)
        except (RuntimeError, TimeoutError) as error:
            # Harbor's environments have no type of their own for this, only these words.
            if "timed out" not in str(error):
                raise
            stdout = error.stdout if isinstance(error, CommandTimeout) else ""
            return SandboxResult(shorten(stdout, max_output_bytes), str(error), TIMEOUT_EXIT_CODE)
        stdout, stderr = (shorten(text or "", max_output_bytes) for text in (result.stdout, result.stderr))
        return SandboxResult(stdout, stderr, result.return_code)

    async def read_file(self, path: str, max_bytes: int | None = None, timeout: int = 60) -> SandboxResult:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "content")
            try:
                await self.environment.download_file(path, copy)
            except Exception as error:
                return await self._refused(error)
            content = copy.read_bytes()[:max_bytes]
        return SandboxResult(content.decode(errors="replace"), "", 0)

    async def write_file(
        self, path: str, content: str | bytes, executable: bool = False, timeout: int = 60
    ) -> SandboxResult:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "content")
            copy.write_bytes(content.encode() if isinstance(content, str) else content)
            copy.chmod(0o755 if executable else 0o644)
            try:
                await self.environment.upload_file(copy, path)
            except Exception as error:
                return await self._refused(error)
        return SandboxResult("", "", 0)

    async def _refused(self, error: Exception) -> SandboxResult:
        """A file that can't be had is a result; every client has errors of its own for that."""
        if isinstance(error, SandboxLost):
            raise error
        await self.send_heartbeat()
        return SandboxResult("", str(error) or type(error).__name__, 1)

    async def cleanup(self) -> None:
        try:
            await self.environment.stop(delete=True)
        finally:
            self._ended()


def shorten(text: str, max_bytes: int | None) -> str:
    """At most `max_bytes` of the text: its head and its tail, and between them a line saying what was cut."""
    content = text.encode()
    if max_bytes is None or len(content) <= max_bytes:
        return text
    head, tail = max_bytes - max_bytes // 2, max_bytes // 2
    cut = len(content) - max_bytes
    before = content[:head].decode(errors="ignore")
    after = content[len(content) - tail :].decode(errors="ignore")
    return f"{before}\n[... {cut} of {len(content)} bytes cut ...]\n{after}"
