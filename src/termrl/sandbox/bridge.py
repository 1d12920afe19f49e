"""`InterfaceEnvironment`: any `SandboxInterface` as a Harbor environment, so that it runs Terminus-2.

What Harbor needs beyond the five calls is made of them: variables, users and working directories are put
into the command; directories travel as one tar file; bytes come back as base64. What the task.toml asks for
and the factory does not say it honours is refused when the environment is made, before the factory is called.
"""

import asyncio
import base64
import io
import shlex
import tarfile
import time
import uuid
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

from termrl.sandbox.errors import CommandTimeout, SandboxLost, SandboxRefused
from termrl.sandbox.factory import asked_of, factory_named, honoured_by, refuse_what_it_ignores
from termrl.sandbox.interface import TIMEOUT_EXIT_CODE, SandboxInterface, SandboxResult
from termrl.sandbox.lifetime import lifetime_seconds, task_config_beside

HEARTBEAT_SECONDS = 60.0
_TRANSFER_SECONDS = 600
_CHUNK = 1 << 20


class InterfaceEnvironment(BaseEnvironment):
    def __init__(self, *args: Any, factory: str, lifetime: int | None = None, **kwargs: Any) -> None:
        """`factory` is an import path, or the name under which `hand_over` keeps a live one."""
        self._factory = factory_named(factory)
        self._lifetime = lifetime
        self._sandbox: SandboxInterface | None = None
        self._heart: asyncio.Task[None] | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "factory"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        # All of it: what the factory does not honour was refused by name in _validate_definition.
        return EnvironmentCapabilities(
            disable_internet=True,
            gpus=True,
            tpus=True,
            docker_compose=True,
            windows=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
            network_allowlist_ipv6_addresses=True,
            network_allowlist_ipv4_cidrs=True,
            network_allowlist_ipv6_cidrs=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities | None:
        return None

    def _validate_definition(self) -> None:
        modes = {
            self._network_policy.network_mode,
            *(each.network_mode for each in self._phase_network_policies),
        }
        asked = {
            name for mode in modes for name in asked_of(self.task_env_config, self.environment_dir, mode)
        }
        refuse_what_it_ignores(self._factory, sorted(asked), self.environment_name)

    @property
    def honoured(self) -> frozenset[str]:
        return honoured_by(self._factory)

    async def start(self, force_build: bool) -> None:
        config = task_config_beside(self.environment_dir)
        lifetime = self._lifetime or lifetime_seconds(config)
        self._sandbox = await self._factory(self.environment_dir, lifetime)
        self._heart = asyncio.create_task(self._beat(self._sandbox))
        targets = self._mount_targets(writable_only=True)
        if targets:
            await self._must(self._ensure_dirs_command(targets), "make the log directories")
        await self._upload_environment_dir_after_start()

    async def stop(self, delete: bool) -> None:
        heart, self._heart = self._heart, None
        if heart is not None:
            heart.cancel()
            await asyncio.gather(heart, return_exceptions=True)
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.cleanup()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        timeout = int(timeout_sec) if timeout_sec else self._lifetime or 24 * 3600
        whole = _command_line(command, self._merge_env(env) or {}, self._resolve_user(user))
        started = time.monotonic()
        workdir = cwd or self.task_env_config.workdir
        result = await self._running().run_command(whole, workdir=workdir, timeout=timeout)
        if result.exit_code == TIMEOUT_EXIT_CODE and timeout_sec and time.monotonic() - started >= timeout:
            message = f"Command timed out after {timeout} seconds: {command:.200}"
            raise CommandTimeout(message, result.stdout, result.stderr)
        callback = self._output_callback()
        if callback is not None:
            await callback(result.stdout, "stdout")
            await callback(result.stderr, "stderr")
        return ExecResult(stdout=result.stdout, stderr=result.stderr, return_code=result.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        # As `cp` does: into the target where that is a directory.
        folder = target_path.endswith("/") or await self.is_dir(target_path, user="root")
        target = f"{target_path.rstrip('/')}/{source.name}" if folder else target_path
        await self._must(f"mkdir -p {shlex.quote(str(Path(target).parent))}", f"make room for {target}")
        executable = bool(source.stat().st_mode & 0o100)
        await self._write(target, source.read_bytes(), executable)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(str(source_dir), arcname=".", filter=_owned_by_root)
        away = f"/tmp/.termrl-{uuid.uuid4().hex}.tar.gz"
        await self._write(away, packed.getvalue(), executable=False)
        target = shlex.quote(target_dir)
        unpack = f"mkdir -p {target} && tar xzf {away} -C {target}; code=$?; rm -f {away}; exit $code"
        await self._must(unpack, f"unpack into {target_dir}")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        target = Path(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(await self._read(source_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        away = f"/tmp/.termrl-{uuid.uuid4().hex}.tar.gz"
        source = shlex.quote(source_dir)
        await self._must(f"tar czf {away} -C {source} .", f"pack {source_dir}")
        try:
            packed = await self._read(away)
        finally:
            await self._running().run_command(f"rm -f {away}", timeout=_TRANSFER_SECONDS)
        target = Path(target_dir)
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            archive.extractall(target, filter=transfer_tar_filter)

    def _running(self) -> SandboxInterface:
        if self._sandbox is None:
            raise SandboxLost(f"The sandbox {self.session_id} is not running.")
        return self._sandbox

    async def _beat(self, sandbox: SandboxInterface) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                await sandbox.send_heartbeat()
            except Exception as error:
                self.logger.warning("The sandbox %s gave no heartbeat: %s", self.session_id, error)

    async def _must(self, command: str, what: str) -> SandboxResult:
        result = await self._running().run_command(command, timeout=_TRANSFER_SECONDS)
        if result.exit_code != 0:
            raise SandboxRefused(f"The sandbox {self.session_id} could not {what}: {result.stderr.strip()}")
        return result

    async def _write(self, path: str, content: bytes, executable: bool) -> None:
        result = await self._running().write_file(
            path, content, executable=executable, timeout=_TRANSFER_SECONDS
        )
        if result.exit_code != 0:
            raise SandboxRefused(
                f"The sandbox {self.session_id} could not write {path}: {result.stderr.strip()}"
            )

    async def _read(self, path: str) -> bytes:
        """The file's bytes: `read_file` gives text only, so they come as base64, a piece at a time."""
        content = bytearray()
        quoted = shlex.quote(path)
        while True:
            skip = len(content) // _CHUNK
            piece = await self._must(
                f"test -f {quoted} && test -r {quoted} || {{ echo not a readable file >&2; exit 1; }}; "
                f"dd if={quoted} bs={_CHUNK} skip={skip} count=1 2>/dev/null | base64",
                f"read {path}",
            )
            decoded = base64.b64decode(piece.stdout)
            content += decoded
            if len(decoded) < _CHUNK:
                return bytes(content)


def _command_line(command: str, env: dict[str, str], user: str | int | None) -> str:
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in env.items())
    whole = exports + command
    if user in (None, "root", 0):
        return whole
    # `su` asks PAM, which a small image has not set up; `setpriv` asks nobody.
    quoted, name = shlex.quote(whole), shlex.quote(str(user))
    return (
        f"if command -v setpriv >/dev/null; then exec setpriv --reuid={name} "
        f"--regid=$(id -g {name} 2>/dev/null || echo {name}) --clear-groups "
        f'env HOME="$(getent passwd {name} | cut -d: -f6)" bash -c {quoted}; '
        f"else exec su -s /bin/bash -c {quoted} $(id -un {name}); fi"
    )


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
