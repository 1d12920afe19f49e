"""The change from the agent's view of a sandbox to the verifier's, and back."""

import socket

from .boot import privileged, root_id
from .inside import Sandbox
from .jobs import Jobs
from .loop import Loop
from .sandboxes import Sandboxes
from .signs import find_signs, host_links
from .terminal import end_terminal
from .view import open_view

_RECEIVE = 1 << 16


class Verifications:
    def __init__(self, loop: Loop, sandboxes: Sandboxes, jobs: Jobs) -> None:
        self._loop = loop
        self._sandboxes = sandboxes
        self._jobs = jobs
        self._owner = root_id(privileged())
        self._signs: dict[str, list[str]] = {}

    def prepare(self, request: int, name: str, workdir: str) -> None:
        sandbox = self._sandboxes.named(name)
        sandbox.close_view()
        links = host_links()
        here, there = socket.socketpair()

        def body() -> None:
            here.close()
            end_terminal()
            signs = "\0".join(find_signs(workdir, links)).encode()
            socket.send_fds(there, [b"v", signs], [open_view(self._owner)])

        try:
            self._jobs.send(request, sandbox, body, keep_rights=True)
        except OSError:
            here.close()
            raise
        finally:
            there.close()
        self._loop.watch(here.fileno(), lambda: self._on_view(sandbox, here))

    def _on_view(self, sandbox: Sandbox, channel: socket.socket) -> None:
        said, fds, _, _ = socket.recv_fds(channel, _RECEIVE, 1)
        self._loop.forget(channel.detach())
        if fds:
            sandbox.view = fds[0]
            self._signs[sandbox.name] = [sign for sign in said[1:].decode().split("\0") if sign]

    def signs(self, request: int, name: str) -> None:
        """What the last preparation of a verification found that the agent had left for it."""
        self._loop.answer(request, signs=self._signs.pop(name, []))

    def end(self, request: int, name: str) -> None:
        self._sandboxes.named(name).close_view()
        self._loop.answer(request, ok=True)
