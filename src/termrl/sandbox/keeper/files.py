"""Files on their way in and out: a process on one side packs, one on the other unpacks, a pipe between."""

import os
from collections.abc import Callable
from typing import Any

from . import transfer
from .inside import Sandbox, spawn, spawn_on_host
from .jobs import Job, Jobs
from .sandboxes import Sandboxes

_ENDS: dict[bool, tuple[Any, Any]] = {
    True: (transfer.pack_directory, transfer.unpack_directory),
    False: (transfer.pack_file, transfer.unpack_file),
}


class Files:
    def __init__(self, sandboxes: Sandboxes, jobs: Jobs) -> None:
        self._sandboxes = sandboxes
        self._jobs = jobs

    def upload(
        self,
        request: int,
        name: str,
        source: str,
        target: str,
        directory: bool,
        owner: str = "",
        mode: int | None = None,
    ) -> None:
        pack, unpack = _ENDS[directory]
        self._transfer(
            request,
            self._sandboxes.named(name),
            lambda stream: pack(source, stream),
            lambda stream: unpack(target, stream, on_host=False, owner=owner, mode=mode),
            inward=True,
        )

    def download(self, request: int, name: str, source: str, target: str, directory: bool) -> None:
        pack, unpack = _ENDS[directory]
        self._transfer(
            request,
            self._sandboxes.named(name),
            lambda stream: pack(source, stream),
            lambda stream: unpack(target, stream, on_host=True),
            inward=False,
        )

    def _transfer(
        self,
        request: int,
        sandbox: Sandbox,
        pack: Callable[[int], None],
        unpack: Callable[[int], None],
        *,
        inward: bool,
    ) -> None:
        reader, writer = os.pipe()
        errors, complaints = os.pipe()

        def side(work: Callable[[int], None], own: int, other: int) -> Callable[[], None]:
            def body() -> None:
                os.dup2(complaints, 2)
                os.close(other)
                work(own)

            return body

        packer, unpacker = side(pack, writer, reader), side(unpack, reader, writer)
        try:
            inner = spawn(sandbox, unpacker if inward else packer)
            outer = spawn_on_host(packer if inward else unpacker)
        except OSError:
            os.close(errors)
            raise
        finally:
            for fd in (reader, writer, complaints):
                os.close(fd)
        self._jobs.start(Job(request, {inner, outer}, errors))
