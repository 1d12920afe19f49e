"""Daytona's HTTP interface on loopback, for its own client: every sandbox of it is a real local one.

Only what Harbor's environment and the snapshot calls use is here; anything else is answered 501 by its path,
so that a client that starts to ask for more fails by name.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox import snapshots
from termrl.sandbox.errors import SandboxLost
from termrl.sandbox.local import LocalEnvironment

KEY = "dtn_loopback"


@dataclass
class Machine:
    environment: LocalEnvironment
    described: dict[str, Any]
    commands: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Daytona:
    folder: Path
    layers_dir: str
    url: str = ""
    base_images: dict[str, str] = field(default_factory=dict)
    """What an image's name comes to here."""
    machines: dict[str, Machine] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)
    created: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    def routes(self) -> list[web.AbstractRouteDef]:
        toolbox = "/toolbox/{id}"
        session = toolbox + "/process/session"
        return [
            web.get("/api/config", self.config),
            web.post("/api/sandbox", self.create),
            web.get("/api/sandbox/{id}", self.get),
            web.delete("/api/sandbox/{id}", self.delete),
            web.get("/api/sandbox/{id}/toolbox-proxy-url", self.proxy),
            web.post("/api/sandbox/{id}/snapshot", self.freeze),
            web.get("/api/snapshots/{name}", self.get_snapshot),
            web.delete("/api/snapshots/{name}", self.delete_snapshot),
            web.post(session, self.open_session),
            web.post(session + "/{session}/exec", self.execute),
            web.get(session + "/{session}/command/{command}", self.command),
            web.get(session + "/{session}/command/{command}/logs", self.logs),
            web.route("*", "/{path:.*}", self.unknown),
        ]

    async def unknown(self, request: web.Request) -> web.Response:
        return web.json_response({"message": f"not here: {request.method} {request.path}"}, status=501)

    async def config(self, request: web.Request) -> web.Response:
        return web.json_response({"analyticsApiUrl": None})

    async def create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.created.append(asked)
        identity = uuid.uuid4().hex
        environment_dir = self.folder / identity / "environment"
        environment_dir.mkdir(parents=True)
        handles = None
        (environment_dir / "Dockerfile").write_text("FROM termrl/host\n")
        if asked.get("snapshot"):
            if asked["snapshot"] not in self.snapshots:
                return web.json_response({"message": f"Snapshot {asked['snapshot']} not found"}, status=404)
            handles = snapshots.hand_over({str(environment_dir.resolve()): self.snapshots[asked["snapshot"]]})
        else:
            (environment_dir / "Dockerfile").write_text(asked["buildInfo"]["dockerfileContent"])
        paths = TrialPaths(self.folder / identity / "trial")
        paths.mkdir()
        environment = LocalEnvironment(
            environment_dir=environment_dir,
            environment_name=identity,
            session_id=identity,
            trial_paths=paths,
            task_env_config=EnvironmentConfig(),
            layers_dir=self.layers_dir,
            base_images=self.base_images,
            keep_changes=True,
            snapshots=handles,
            persistent_env=asked.get("env") or {},
        )
        await environment.start(force_build=False)
        described = {
            "id": identity,
            "organizationId": "o",
            "name": identity,
            "user": "root",
            "env": asked.get("env") or {},
            "labels": asked.get("labels") or {},
            "public": False,
            "networkBlockAll": bool(asked.get("networkBlockAll")),
            "kvm": False,
            "target": "us",
            **{"cpu": 1, "gpu": 0, "memory": 1, "disk": 1, "state": "started", "desiredState": "started"},
            "toolboxProxyUrl": f"{self.url}/toolbox",
        }
        self.machines[identity] = Machine(environment, described)
        return web.json_response(described)

    def machine(self, request: web.Request) -> Machine:
        identity = request.match_info["id"]
        if identity not in self.machines:
            raise web.HTTPNotFound(
                text=json.dumps({"message": "Sandbox not found"}), content_type="application/json"
            )
        return self.machines[identity]

    async def get(self, request: web.Request) -> web.Response:
        return web.json_response(self.machine(request).described)

    async def delete(self, request: web.Request) -> web.Response:
        machine = self.machine(request)
        await machine.environment.stop(delete=True)
        del self.machines[request.match_info["id"]]
        self.deleted.append(request.match_info["id"])
        return web.json_response({**machine.described, "state": "destroyed"})

    async def proxy(self, request: web.Request) -> web.Response:
        return web.json_response({"url": f"{self.url}/toolbox"})

    async def freeze(self, request: web.Request) -> web.Response:
        machine = self.machine(request)
        name = (await request.json())["name"]
        self.snapshots[name] = await machine.environment.keep_as(f"snapshot-{name}")
        return web.json_response(machine.described)

    async def get_snapshot(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.snapshots:
            return web.json_response({"message": "Snapshot not found"}, status=404)
        now = datetime.now(UTC).isoformat()
        described = {
            **{"id": name, "name": name, "general": False, "state": "active", "size": 1, "entrypoint": []},
            **{
                "cpu": 1,
                "gpu": 0,
                "mem": 1,
                "disk": 1,
                "errorReason": None,
                "createdAt": now,
                "updatedAt": now,
            },
            **{"lastUsedAt": now, "sourceSandboxId": None},
        }
        return web.json_response(described)

    async def delete_snapshot(self, request: web.Request) -> web.Response:
        self.snapshots.pop(request.match_info["name"], None)
        return web.json_response({})

    async def open_session(self, request: web.Request) -> web.Response:
        self.machine(request)
        return web.json_response({}, status=201)

    async def execute(self, request: web.Request) -> web.Response:
        machine, asked = self.machine(request), await request.json()
        identity = uuid.uuid4().hex
        machine.commands[identity] = {"id": identity, "command": asked["command"]}
        try:
            result = await machine.environment.exec(asked["command"])
        except SandboxLost as error:
            return web.json_response({"message": str(error)}, status=400)
        machine.commands[identity] |= {
            "exitCode": result.return_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
        }
        return web.json_response({"cmdId": identity})

    async def command(self, request: web.Request) -> web.Response:
        command = self.machine(request).commands[request.match_info["command"]]
        return web.json_response({name: command[name] for name in ("id", "command", "exitCode")})

    async def logs(self, request: web.Request) -> web.Response:
        command = self.machine(request).commands[request.match_info["command"]]
        both = (command["stdout"] or "") + (command["stderr"] or "")
        return web.json_response({"output": both, "stdout": command["stdout"], "stderr": command["stderr"]})


@web.middleware
async def authorized(request: web.Request, handler: Any) -> web.StreamResponse:
    if request.headers.get("Authorization") != f"Bearer {KEY}":
        return web.json_response({"message": "Unauthorized"}, status=401)
    response: web.StreamResponse = await handler(request)
    return response


@asynccontextmanager
async def serve(folder: Path, layers_dir: Path) -> AsyncIterator[Daytona]:
    service = Daytona(folder, str(layers_dir))
    application = web.Application(middlewares=[authorized])
    application.add_routes(service.routes())
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await asyncio.gather(*(each.environment.stop(delete=True) for each in service.machines.values()))
        await runner.cleanup()
