"""What goes wrong, made to go wrong: for each message of docs/troubleshooting.md the way to it.

A producer makes the cause in an empty working directory. Then it gives the command that says the message, or
what a server answered, or it runs into the message itself by calling a room. The modules here have one or two
sections of the page each.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import tinker

from termrl.config import EvalConfig
from termrl.engine.process import EngineHandle
from termrl.evaluate.evaluation import DIGESTS
from termrl.evaluate.going_on import evaluation_name
from termrl.settings import to_dict
from termrl.store import Checkpoint, Run
from termrl.tasks import load_harbor_tasks


@cache
def _any_task() -> Path:
    return load_harbor_tasks("termrl/basics:train")[0].task_dir


class Place:
    """An empty working directory in which a producer makes what it needs to go wrong."""

    def __init__(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, start_engine: Callable[[], EngineHandle]
    ) -> None:
        self.path = path
        self.monkeypatch = monkeypatch
        self._start_engine = start_engine
        self.open = ExitStack()
        """What is to be closed when the message was said."""

    @property
    def engine(self) -> EngineHandle:
        """A Tinker-compatible server, shared by all who ask for it."""
        return self._start_engine()

    def tinker(self) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=self.engine.base_url, api_key=self.engine.api_key)

    @contextmanager
    def endpoint(self, status: int, answer: dict[str, Any], *, lost: int = 0) -> Iterator[str]:
        """The address of a web server that answers everything with the same JSON, less the bytes lost."""
        text = json.dumps(answer).encode()

        class Answering(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def do_GET(self) -> None:
                self.do_HEAD()
                self.wfile.write(text)

            def do_HEAD(self) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text) + lost))
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
            Thread(target=server.serve_forever).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/v1"
            finally:
                server.shutdown()

    def file(self, name: str, text: str = "") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def command(self, name: str, script: str) -> None:
        """A command of that name that does this, found before any other."""
        self.file(f"bin/{name}", f"#!/bin/sh\n{script}\n").chmod(0o755)
        self.monkeypatch.setenv("PATH", str(self.path / "bin"), prepend=os.pathsep)

    def task(self, name: str = "tasks/one") -> Path:
        return Path(shutil.copytree(_any_task(), self.path / name))

    def run(self, name: str, *, checkpoint: str | None = None, **settings: object) -> Path:
        with Run.create(self.path / "runs" / name, kind="train", settings=dict(settings)) as run:
            if checkpoint:
                run.record_checkpoint(Checkpoint("last", 1, "tinker://a/weights/b", checkpoint))
        return self.path / "runs" / name

    def evaluation(self, config: EvalConfig) -> Path:
        """An evaluation that was begun, of a dataset as it is now."""
        path = self.path / "runs" / (config.run_name or evaluation_name(config))
        with Run.create(path, kind="eval", settings=to_dict(config)) as run:
            run.record_fact(DIGESTS, {"gone": "0"})
        return path

    def results(self, name: str, *, task: str = "t", passed: bool | None = True, digest: str = "d") -> None:
        row = {
            "task": task,
            "outcomes": ["sandbox_lost" if passed is None else "solved"],
            "passed": [passed],
        }
        dataset = {"name": "x", "digest": digest}
        self.file(f"{name}/results.json", json.dumps({"schema": 1, "dataset": dataset, "tasks": [row]}))


type Producer = Callable[[Place], list[str] | str | None]
"""Gives the command that says the message, or what a server answered, or raises it."""
PRODUCERS: dict[str, Producer] = {}
"""By the page's words, in which … stands for what differs."""


def says(message: str) -> Callable[[Producer], Producer]:
    assert message not in PRODUCERS, f"two producers of {message!r}"

    def keep(producer: Producer) -> Producer:
        PRODUCERS[message] = producer
        return producer

    return keep


def said_by(message: str, *command: str) -> None:
    says(message)(lambda place: list(command))
