"""What compose is asked to do in a container, said to the engine itself: the same, in a third of the time.

For every command `docker compose` reads and resolves the whole project before it talks to the engine.
`exec` and `cp` need nothing of it but the container that a service runs in.
"""

from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence

from harbor.environments.docker.runtime import ContainerRuntime

_WITH_VALUE = ("-w", "-e", "-u")
_WITHOUT_TERMINAL = ("-T", "--no-TTY")
GONE = ("is not running", "No such container", "no such container", "is not created or running")


def service_of(command: Sequence[str]) -> str | None:
    """The service whose container the command is for, if it is one that the engine can be given."""
    match command[0]:
        case "exec":
            return command[_end_of_options(command)]
        case "cp" if len(command) == 3:
            return next((name for name, found in map(_split, command[1:]) if found), None)
        case _:
            return None


def for_engine(command: Sequence[str], container: str, *, piped: bool) -> list[str]:
    """The engine's own command; `piped` where something is written to its standard input."""
    if command[0] == "cp":
        places = (f"{container}:{path}" if found else path for path, found in map(_path, command[1:]))
        return ["cp", *places]
    end = _end_of_options(command)
    options = [word for word in command[1:end] if word not in _WITHOUT_TERMINAL]
    return ["exec", *(["-i"] if piped else []), *options, container, *command[end + 1 :]]


async def container_of(runtime: ContainerRuntime, project: str, service: str) -> str | None:
    """The id of the container that a service of a project runs in."""
    found = await containers(runtime, project, f"label=com.docker.compose.service={service}")
    return found[0] if found else None


async def containers(runtime: ContainerRuntime, project: str, *filters: str, all: bool = False) -> list[str]:
    """The ids of a project's containers: those that run, or `all` that there are."""
    words = ["ps", "--quiet", "--no-trunc", *(["--all"] if all else [])]
    for each in (f"label=com.docker.compose.project={project}", *filters):
        words += ["--filter", each]
    process = await create_subprocess_exec(*runtime.engine_cmd(*words), stdout=PIPE, stderr=DEVNULL)
    said, _ = await process.communicate()
    return said.decode().split()


def says_gone(output: str) -> bool:
    """Whether the engine, or compose, refused a command because its container is no more."""
    first = output.lstrip().partition("\n")[0]
    return first.startswith(("Error", "error", 'service "')) and any(words in first for words in GONE)


def _end_of_options(command: Sequence[str]) -> int:
    at = 1
    while command[at].startswith("-"):
        at += 2 if command[at] in _WITH_VALUE else 1
    return at


def _split(place: str) -> tuple[str, bool]:
    """A service's name, if the place is in one: a path on the host begins with a slash or a dot."""
    name, colon, _ = place.partition(":")
    return name, bool(colon) and not name.startswith(("/", "."))


def _path(place: str) -> tuple[str, bool]:
    _, found = _split(place)
    return (place.partition(":")[2] if found else place), found
