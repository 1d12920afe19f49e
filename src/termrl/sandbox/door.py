"""Takes over the socket that the keeper has listening inside a sandbox (`keeper.doors`)."""

import socket
import tempfile
from pathlib import Path

from termrl.sandbox.client import KeeperClient


async def open_door(keeper: KeeperClient, name: str, port: int) -> socket.socket:
    """What is connected to on 127.0.0.1:`port` inside the sandbox of that name is accepted from this."""
    with tempfile.TemporaryDirectory(prefix="termrl-door-") as folder, socket.socket(socket.AF_UNIX) as here:
        path = str(Path(folder, "s"))
        here.bind(path)
        here.listen(1)
        await keeper.ask("listen", name=name, port=port, hand_to=path)
        courier, _ = here.accept()  # it has come and gone: the keeper answers after it
        with courier:
            _, (handed,), _, _ = socket.recv_fds(courier, 1, 1)
    listener = socket.socket(fileno=handed)
    listener.setblocking(False)
    return listener
