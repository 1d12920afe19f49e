"""A way out of a sandbox that has no network: one port of its own loopback, answered by the client.

A process of the keeper's goes in, listens there and hands the listening socket to the client through a socket
file of the client's. Whoever holds it accepts connections, wherever it is itself; nothing else leads out.
"""

import socket

from .jobs import Jobs
from .sandboxes import Sandboxes

_WAITING = 128


class Doors:
    def __init__(self, sandboxes: Sandboxes, jobs: Jobs) -> None:
        self._sandboxes = sandboxes
        self._jobs = jobs

    def listen(self, request: int, name: str, port: int, hand_to: str) -> None:
        with socket.socket(socket.AF_UNIX) as courier:
            courier.connect(hand_to)

            def body() -> None:
                with socket.socket() as listener:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    listener.bind(("127.0.0.1", port))
                    listener.listen(_WAITING)
                    socket.send_fds(courier, [b"l"], [listener.fileno()])

            self._jobs.send(request, self._sandboxes.named(name), body)
