"""The keeper: reads requests from its one client and has them done.

It ends when the client's process does, however that ended, and the sandboxes end with it.
"""

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

from .boot import privileged, root_id
from .commands import Commands
from .doors import Doors
from .files import Files
from .inside import NoSuchSandbox
from .jobs import Jobs
from .loop import Loop
from .messages import decode
from .probe import probe
from .sandboxes import Sandboxes
from .verifications import Verifications

_RECEIVE = 1 << 16


class Keeper:
    def __init__(self, client: socket.socket, parent: int, label: str) -> None:
        self._client = client
        self._inbox = bytearray()
        self._loop = Loop(client, self.leave)
        self._sandboxes = Sandboxes(self._loop, label)
        self._commands = Commands(self._loop, self._sandboxes)
        self._jobs = Jobs(self._loop)
        files = Files(self._sandboxes, self._jobs)
        verifications = Verifications(self._loop, self._sandboxes, self._jobs)
        self._operations: dict[str, Callable[..., None]] = {
            "probe": self._probe,
            "boot": self._sandboxes.boot,
            "stop": self._sandboxes.stop,
            "exec": self._commands.run,
            "cancel": self._cancel,
            "upload": files.upload,
            "download": files.download,
            "listen": Doors(self._sandboxes, self._jobs).listen,
            "prepare_verification": verifications.prepare,
            "signs": verifications.signs,
            "end_verification": verifications.end,
        }
        self._loop.watch(client.fileno(), self._receive)
        self._loop.watch(os.pidfd_open(parent), self.leave)
        if os.getppid() != parent:
            self.leave()

    def run(self) -> NoReturn:
        self._loop.run()

    def leave(self) -> NoReturn:
        self._sandboxes.leave()
        os._exit(0)

    def _receive(self) -> None:
        try:
            chunk = self._client.recv(_RECEIVE)
        except ConnectionError:
            chunk = b""
        if not chunk:
            self.leave()
        self._inbox += chunk
        for message in decode(self._inbox):
            request = message.pop("id")
            try:
                self._operations[message.pop("op")](request, **message)
            except NoSuchSandbox as error:
                self._loop.answer(request, lost=str(error.strerror or error))
            except OSError as error:
                self._loop.answer(request, error=str(error))

    def _probe(self, request: int) -> None:
        self._loop.answer(request, **probe(), owner=root_id(privileged()))

    def _cancel(self, request: int, cancelled: int) -> None:
        self._commands.cancel(cancelled)
        self._jobs.cancel(cancelled)


def main() -> None:
    # It was inherited to get here; what runs in a sandbox must not inherit it in turn.
    os.set_inheritable(int(sys.argv[1]), False)
    client = socket.socket(fileno=int(sys.argv[1]))
    parent, label = int(sys.argv[2]), sys.argv[3]
    # When memory runs out it is a sandbox that has to give way, not the training process.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as setting:
        setting.write("300")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keeper = Keeper(client, parent, label)
    signal.signal(signal.SIGTERM, lambda number, frame: keeper.leave())
    keeper.run()
