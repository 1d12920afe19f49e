"""Whether a backend could start a sandbox now; if not, why, and the command that mends it.

`termrl doctor` prints this for every backend; `train` and `eval` ask it of the one they need, and name one
that would work meanwhile.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import _ENVIRONMENT_REGISTRY

from termrl.errors import UserError
from termrl.sandbox.backends import LOCAL, Backend, backend_names, load_environment_class
from termrl.sandbox.errors import BackendNotReady
from termrl.sandbox.preflight import Check, check_local, require_local

_ENGINE_SECONDS = 30
_INSTALL = {
    "docker": "apt-get install docker.io docker-compose",
    "podman": "apt-get install podman podman-compose",
}


def check_backends() -> Iterator[Check]:
    """One line for each backend but the local one, which has its own."""
    for name in backend_names():
        if name != LOCAL:
            yield check_backend(name)


def check_backend(name: str) -> Check:
    if name == LOCAL:
        failed = [check for check in check_local() if not check.ok]
        return failed[0] if failed else Check(name, True, "ready", "")
    if name in _INSTALL:
        return _check_engine(name)
    return _check_cloud(name)


def require_backend(backend: Backend) -> None:
    """Raises `BackendNotReady`, one sentence, where this backend could not start a sandbox now."""
    backend.check()
    if backend.factory is not None:
        return
    if backend.environment_type == LOCAL:
        require_local()
        return
    if ":" in backend.environment_type:
        reason = _preflight(backend.environment_class())
        if reason is not None:
            raise BackendNotReady(f"environment_type={backend.environment_type} is not ready: {reason}")
        return
    check = check_backend(backend.environment_type)
    if not check.ok:
        raise BackendNotReady(
            f"environment_type={backend.environment_type} is not ready: {check.detail}: {check.fix}"
            f"{_what_would_work(backend.environment_type)}."
        )


def _what_would_work(name: str) -> str:
    for other in (LOCAL, "docker", "podman"):
        if other != name and check_backend(other).ok:
            return f"; environment_type={other} would work now"
    return ""


def _check_engine(name: str) -> Check:
    if shutil.which(name) is None:
        return Check(name, False, f"there is no {name} command", f"`{_INSTALL[name]}`", required=False)
    try:
        return _look_at_engine(name)
    except subprocess.TimeoutExpired as error:
        asked = "the engine" if error.cmd == [name, "info"] else f"`{' '.join(error.cmd)}`"
        fix = f"`systemctl restart {name}`, and look at its log"
        return Check(name, False, f"{asked} did not answer in {_ENGINE_SECONDS} s", fix, required=False)


def _look_at_engine(name: str) -> Check:
    info = _ask([name, "info"])
    if info.returncode != 0 or ("\nServer:" in info.stdout and "Cannot connect" in info.stdout + info.stderr):
        return Check(name, False, *_why_no_engine(name, info.stderr), required=False)
    compose = [name, "compose", "version"]
    if name == "podman" and shutil.which("podman-compose"):
        compose = ["podman-compose", "version"]
    if _ask(compose).returncode != 0:
        fix = "`apt-get install docker-compose`" if name == "docker" else "`apt-get install podman-compose`"
        return Check(name, False, f"there is no {name} compose", fix, required=False)
    # Harbor says --in-pod on every call.
    if compose[0] == "podman-compose" and "--in-pod" not in _ask(["podman-compose", "--help"]).stdout:
        detail = "podman-compose is older than Harbor needs"
        return Check(name, False, detail, "`pip install podman-compose`", required=False)
    return Check(name, True, "ready", "", required=False)


def _ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_ENGINE_SECONDS, check=False)


def _why_no_engine(name: str, complaint: str) -> tuple[str, str]:
    last = (complaint.strip().splitlines() or [""])[-1]
    if "permission denied" in complaint.lower():
        fix = f"`sudo usermod -aG {name} {os.environ.get('USER', '$USER')}`, then log in again"
        return "its socket may not be opened by this user", fix
    return (
        f"its engine is not running ({last})",
        f"`systemctl start {name}`, or set DOCKER_HOST to one that runs",
    )


def _check_cloud(name: str) -> Check:
    extra = next(
        (entry.pip_extra for kind, entry in _ENVIRONMENT_REGISTRY.items() if kind.value == name), None
    )
    install = f"`pip install 'harbor[{extra}]'`"
    try:
        environment_class = load_environment_class(name)
    except UserError:
        return Check(name, False, "its client is not installed", install, required=False)
    missing = _missing_client(environment_class)
    if missing and extra is not None:
        return Check(name, False, "its client is not installed", install, required=False)
    reason = _preflight(environment_class)
    if reason is None:
        return Check(name, True, "ready", "", required=False)
    what, _, how = reason.partition(". ")
    return Check(name, False, what, (how or what).rstrip("."), required=False)


def _missing_client(environment_class: type[BaseEnvironment]) -> bool:
    """Harbor's modules import without their client and remember that it is missing in `_HAS_...`."""
    module = vars(sys.modules[environment_class.__module__])
    package = vars(sys.modules.get(environment_class.__module__.rpartition(".")[0], sys))
    flags = [
        value for scope in (module, package) for name, value in scope.items() if name.startswith("_HAS_")
    ]
    return any(value is False for value in flags)


def _preflight(environment_class: type[BaseEnvironment]) -> str | None:
    """What the environment's own check says is missing, on one line."""
    try:
        environment_class.preflight()
    except SystemExit as refusal:
        return " ".join(str(refusal).split())
    except UserError as error:
        return str(error)
    except Exception as error:  # a client may raise whatever it likes when it looks for its credentials
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None
