"""Tells, before anything is paid for, whether the local sandbox works on this host, and if not what to do."""

import marshal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from termrl.sandbox.client import keeper_command
from termrl.sandbox.errors import SandboxUnavailable
from termrl.sandbox.keeper.probe import Findings
from termrl.sandbox.tmux import find_tmux

_PROBE = (
    "import sys; sys.path.insert(0, sys.argv[-1]); import marshal; from keeper.probe import probe; "
    "sys.stdout.buffer.write(marshal.dumps(dict(probe())))"
)
_SWITCHES = {
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=15000"),
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
}
_ELSEWHERE = "use another environment type, such as environment_type=docker"


@dataclass(frozen=True)
class Check:
    """One thing that has to be so. `fix` says what to do where it is not."""

    name: str
    ok: bool
    detail: str
    fix: str
    required: bool = True


def probe_host() -> Findings:
    """What the kernel allows, found out by trying it in a process of its own."""
    ended = subprocess.run(
        keeper_command(start=_PROBE),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd="/",
        timeout=30,
        check=False,
    )
    if ended.returncode != 0:
        complaint = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return {
            "as_root": False,
            "namespaces": complaint or "the probe died",
            "proc": "",
            "overlay": "",
            "cgroups": {},
            "ids": 1,
        }
    findings: Findings = marshal.loads(ended.stdout)
    return findings


def check_local() -> list[Check]:
    findings = probe_host()
    tmux = find_tmux()
    bash = Path("/bin/bash").exists()
    how = "as root" if findings["as_root"] else "as an ordinary user"
    refused = findings["namespaces"]
    return [
        Check(
            "user namespaces",
            not refused,
            f"refused: {refused}" if refused else f"allowed, {how}",
            namespaces_fix() if refused else "",
        ),
        Check(
            "fresh /proc",
            not refused and not findings["proc"],
            f"refused: {findings['proc']}" if findings["proc"] else "not tried" if refused else "allowed",
            _PROC_FIX if findings["proc"] else "",
        ),
        Check(
            "overlayfs",
            True,
            f"refused ({findings['overlay']}): roots are copied into memory instead"
            if findings["overlay"]
            else "not tried"
            if refused
            else "allowed",
            "",
        ),
        _check_limits(findings),
        Check(
            "users",
            True,
            f"{findings['ids']} in a sandbox" if findings["ids"] > 1 else "root only (USER is refused)",
            "",
        ),
        Check(
            "tmux",
            tmux is not None,
            str(tmux.program) if tmux else "not found",
            "" if tmux else "run the project's set-up again, or install tmux",
        ),
        Check(
            "bash",
            bash,
            "/bin/bash" if bash else "not found",
            "" if bash else "install bash",
        ),
    ]


def _check_limits(findings: Findings) -> Check:
    """Never missing: what no control group limits, rlimits and processor sets do, less exactly."""
    by_group = [f"{name} (v{version})" for name, version in findings["cgroups"].items()]
    instead = {"cpu": "cpu by processor sets", "memory": "memory by rlimit, of each process"}
    otherwise = [text for name, text in instead.items() if name not in findings["cgroups"]]
    detail = f"by control groups: {', '.join(by_group)}" if by_group else "no control group can be made"
    return Check("limits", True, "; ".join([detail, *otherwise, "processes by rlimit, of each sandbox"]), "")


_PROC_FIX = (
    f"this host is itself a container that hides parts of /proc: start it with --privileged, or {_ELSEWHERE}"
)


def require_local() -> None:
    """Raises `SandboxUnavailable`, one sentence, where a rollout in the local sandbox could not start."""
    for check in check_local():
        if not check.ok:
            raise SandboxUnavailable(
                f"The local sandbox can't run on this host: {check.name} {check.detail}: {check.fix}."
            )


def explain(findings: Findings) -> str:
    """The sentence for what a keeper found out about its host."""
    if findings["namespaces"]:
        what, fix = f"user namespaces refused: {findings['namespaces']}", namespaces_fix()
    else:
        what, fix = f"fresh /proc refused: {findings['proc']}", _PROC_FIX
    return f"The local sandbox can't run on this host: {what}: {fix}."


def namespaces_fix() -> str:
    for path, (off, command) in _SWITCHES.items():
        switch = Path(path)
        if switch.exists() and switch.read_text().strip() == off:
            return f"as root, run `{command}`, or {_ELSEWHERE}"
    return f"let this host (or the container it is) make user namespaces, or {_ELSEWHERE}"
