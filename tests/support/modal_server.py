"""Modal's two gRPC services on loopback, for its own client: every sandbox of it is a real local one.

Only what Harbor's environment and the snapshot calls use is here; any other call is refused by its name, so
that a client that starts to ask for more fails by name. Images are Dockerfiles, built when first started.
"""

import asyncio
import json
import shlex
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from grpclib.server import Server
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router_pb2
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from termrl.sandbox import snapshots
from termrl.sandbox.errors import SandboxRefused
from termrl.sandbox.local import LocalEnvironment

TOKEN = ("ak-loopback", "as-loopback")
FILE_TOOL = "/__modal/.bin/modal-sandbox-fs-tools"
SUCCESS = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
TERMINATED = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TERMINATED, exitcode=137)


@dataclass
class Image:
    dockerfile: str
    mount: str = ""
    snapshot: str = ""


@dataclass
class Exec:
    """A command at work; what is written to it is kept until its end is said."""

    done: asyncio.Event = field(default_factory=asyncio.Event)
    said: dict[int, bytes] = field(default_factory=dict)
    code: int = 0
    stdin: bytearray = field(default_factory=bytearray)
    closed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Modal:
    folder: Path
    layers_dir: str
    port: int = 0
    base_images: dict[str, str] = field(default_factory=dict)
    """What an image's name comes to here."""
    images: dict[str, Image] = field(default_factory=dict)
    mounts: dict[str, dict[str, str]] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    machines: dict[str, LocalEnvironment] = field(default_factory=dict)
    created: list[api_pb2.SandboxCreateV2Request] = field(default_factory=list)
    terminated: list[str] = field(default_factory=list)
    execs: dict[str, Exec] = field(default_factory=dict)
    working: set[asyncio.Task[None]] = field(default_factory=set)

    async def start_machine(self, request: api_pb2.SandboxCreateV2Request) -> str:
        self.created.append(request)
        image = self.images[request.definition.image_id]
        identity = uuid.uuid4().hex
        directory = self.folder / identity / "environment"
        directory.mkdir(parents=True)
        (directory / "Dockerfile").write_text(image.dockerfile)
        for name, digest in self.mounts.get(image.mount, {}).items():
            path = directory / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.contents[digest])
        handles = snapshots.hand_over({str(directory.resolve()): image.snapshot}) if image.snapshot else None
        paths = TrialPaths(self.folder / identity / "trial")
        paths.mkdir()
        environment = LocalEnvironment(
            environment_dir=directory,
            environment_name=identity,
            session_id=identity,
            trial_paths=paths,
            task_env_config=EnvironmentConfig(),
            layers_dir=self.layers_dir,
            base_images=self.base_images,
            keep_changes=True,
            snapshots=handles,
        )
        await environment.start(force_build=False)
        self.machines[identity] = environment
        return identity

    def machine(self, task_id: str) -> LocalEnvironment:
        identity = task_id.removeprefix("ta-").removesuffix("V")
        if identity not in self.machines:
            raise GRPCError(Status.NOT_FOUND, f"there is no task {task_id}")
        return self.machines[identity]

    def start_exec(self, request: router_pb2.TaskExecStartRequest) -> None:
        machine, started = self.machine(request.task_id), Exec()
        self.execs[request.exec_id] = started
        work = asyncio.create_task(self._run(machine, started, request))
        self.working.add(work)
        work.add_done_callback(self.working.discard)

    async def _run(
        self, machine: LocalEnvironment, started: Exec, request: router_pb2.TaskExecStartRequest
    ) -> None:
        try:
            if request.command_args[0] == FILE_TOOL:
                await self._file_tool(machine, started, json.loads(request.command_args[1]))
                return
            env = dict(request.env)
            for source in request.secret_sources:
                env |= dict(source.env.contents)
            result = await machine.exec(
                f"exec {shlex.join(request.command_args)}", cwd=request.workdir or None, env=env
            )
            started.said = {1: (result.stdout or "").encode(), 2: (result.stderr or "").encode()}
            started.code = result.return_code
        except Exception as error:
            started.code, started.said = 1, {2: str(error).encode()}
        finally:
            started.done.set()

    async def _file_tool(self, machine: LocalEnvironment, started: Exec, asked: dict[str, Any]) -> None:
        ((operation, arguments),) = asked.items()
        copy = self.folder / uuid.uuid4().hex
        if operation == "WriteFile":
            await started.closed.wait()
            copy.write_bytes(started.stdin)
            await machine.upload_file(copy, arguments["path"])
        elif operation == "ReadFile":
            try:
                await machine.download_file(arguments["path"], copy)
            except SandboxRefused as error:
                started.code, started.said = 1, {2: _complaint("NotFound", str(error))}
                return
            started.said = {1: copy.read_bytes()}
        else:
            raise NotImplementedError(operation)


def answering(base: type, calls: dict[str, Any]) -> Any:
    """An instance of a generated service that answers these calls and refuses every other by its name."""

    def refuse(name: str) -> Any:
        async def refused(self: Any, stream: Any) -> None:
            raise GRPCError(Status.UNIMPLEMENTED, f"not here: {name}")

        return refused

    def answer(call: Any) -> Any:
        async def answered(self: Any, stream: Any) -> None:
            await call(stream)

        return answered

    names = base.__abstractmethods__  # type: ignore[attr-defined]
    methods = {name: answer(calls[name]) if name in calls else refuse(name) for name in names}
    return type(base.__name__, (base,), methods)()


def unary(handle: Any) -> Any:
    async def call(stream: Any) -> None:
        answer = handle(await stream.recv_message())
        await stream.send_message(await answer if asyncio.iscoroutine(answer) else answer)

    return call


def control_plane(modal: Modal) -> Any:
    def access() -> dict[str, str]:
        return {"url": f"http://127.0.0.1:{modal.port}", "jwt": token()}

    def make_image(request: Any) -> Any:
        """An image on another is what its own commands add to the other's, here as there."""
        commands, mount = list(request.image.dockerfile_commands), request.image.context_mount_id
        for base in request.image.base_images:
            assert commands[0] == f"FROM {base.docker_tag}"
            below = modal.images[base.image_id]
            commands, mount = [below.dockerfile, *commands[1:]], mount or below.mount
        text = "\n".join(commands)
        identity = f"im-{uuid.uuid5(uuid.NAMESPACE_OID, text + mount).hex}"
        modal.images[identity] = Image(text, mount)
        return api_pb2.ImageGetOrCreateResponse(image_id=identity, result=SUCCESS)

    def find_image(request: Any) -> Any:
        if request.image_id not in modal.images:
            raise GRPCError(Status.NOT_FOUND, f"Image {request.image_id} not found")
        return api_pb2.ImageFromIdResponse(image_id=request.image_id)

    def make_mount(request: Any) -> Any:
        identity = f"mo-{uuid.uuid4().hex}"
        modal.mounts[identity] = {file.filename: file.sha256_hex for file in request.files}
        return api_pb2.MountGetOrCreateResponse(mount_id=identity)

    def put_file(request: Any) -> Any:
        if request.data:
            modal.contents[request.sha256_hex] = request.data
        return api_pb2.MountPutFileResponse(exists=request.sha256_hex in modal.contents)

    def missing_files(request: Any) -> Any:
        missing = [digest for digest in request.sha256_hex_hashes if digest not in modal.contents]
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    async def create(request: Any) -> Any:
        identity = await modal.start_machine(request)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=f"sb-{identity}",
            task_id=f"ta-{identity}V",
            command_router_access=api_pb2.CommandRouterAccess(**access()),
        )

    def wait(request: Any) -> Any:
        running = request.sandbox_id.removeprefix("sb-") in modal.machines
        return api_pb2.SandboxWaitResponse(result=None if running else TERMINATED)

    async def terminate(request: Any) -> Any:
        environment = modal.machines.pop(request.sandbox_id.removeprefix("sb-"), None)
        if environment is not None:
            await environment.stop(delete=True)
            modal.terminated.append(request.sandbox_id)
        return api_pb2.SandboxTerminateResponse()

    settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
    calls = {
        "ClientHello": lambda _: api_pb2.ClientHelloResponse(image_builder_version="2025.06"),
        "AuthTokenGet": lambda _: api_pb2.AuthTokenGetResponse(token=token()),
        "EnvironmentGetOrCreate": lambda _: api_pb2.EnvironmentGetOrCreateResponse(
            environment_id="en-1", metadata=api_pb2.EnvironmentMetadata(name="main", settings=settings)
        ),
        "AppGetOrCreate": lambda _: api_pb2.AppGetOrCreateResponse(app_id="ap-1"),
        "ImageGetOrCreate": make_image,
        "ImageFromId": find_image,
        "MountGetOrCreate": make_mount,
        "MountPutFile": put_file,
        "MountBatchedCheckExistence": missing_files,
        "SandboxCreateV2": create,
        "SandboxWaitV2": wait,
        "SandboxTerminateV2": terminate,
        "SandboxGetCommandRouterAccess": lambda _: api_pb2.SandboxGetCommandRouterAccessResponse(**access()),
    }
    return answering(ModalClientBase, {name: unary(handle) for name, handle in calls.items()})


def command_router(modal: Modal) -> Any:
    def start(request: Any) -> Any:
        modal.start_exec(request)
        return router_pb2.TaskExecStartResponse()

    async def wait(request: Any) -> Any:
        started = modal.execs[request.exec_id]
        await started.done.wait()
        return router_pb2.TaskExecWaitResponse(code=started.code)

    async def read(stream: Any) -> None:
        request = await stream.recv_message()
        started = modal.execs[request.exec_id]
        await started.done.wait()
        number = 1 if request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT else 2
        data = started.said.get(number, b"")[request.offset :]
        if data:
            await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=data))

    async def write(stream: Any) -> None:
        started: Exec | None = None
        async for message in stream:
            kind = message.WhichOneof(message.DESCRIPTOR.oneofs[0].name)
            if kind == "start":
                started = modal.execs[message.start.exec_id]
            elif started is not None and kind == "data":
                started.stdin += message.data
        assert started is not None
        started.closed.set()
        await stream.send_message(router_pb2.TaskExecStdinWriteStreamResponse())

    async def freeze(request: Any) -> Any:
        identity = f"im-{uuid.uuid4().hex}"
        kept = await modal.machine(request.task_id).keep_as(f"snapshot-{identity}")
        modal.images[identity] = Image("FROM termrl/host\n", snapshot=kept)
        return router_pb2.TaskSnapshotFilesystemResponse(image_id=identity)

    calls = {
        "TaskExecStart": unary(start),
        "TaskExecWait": unary(wait),
        "TaskExecStdioRead": read,
        "TaskExecStdinWriteStream": write,
        "TaskSnapshotFilesystem": unary(freeze),
    }
    return answering(TaskCommandRouterBase, calls)


def _complaint(kind: str, message: str) -> bytes:
    """As Modal's own tool says it."""
    return json.dumps({"error_kind": kind, "message": message}).encode()


def token() -> str:
    """Of the shape that the client reads its end from."""
    parts = ({"alg": "none"}, {"exp": time.time() + 3600}, {})
    return ".".join(urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


@asynccontextmanager
async def serve(folder: Path, layers_dir: Path) -> AsyncIterator[Modal]:
    folder.mkdir(parents=True)
    modal = Modal(folder, str(layers_dir))
    server = Server([control_plane(modal), command_router(modal)])
    await server.start("127.0.0.1", 0)
    (listener,) = server._server.sockets  # type: ignore[union-attr]
    modal.port = listener.getsockname()[1]
    try:
        yield modal
    finally:
        for environment in modal.machines.values():
            await environment.stop(delete=True)
        server.close()
        await server.wait_closed()
