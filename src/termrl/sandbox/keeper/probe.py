"""Finds out what this host lets a sandbox do, by doing it: each part in a throw-away set of namespaces."""

import os
import socket
from typing import TypedDict

from . import kernel
from .boot import MAPPED_COUNT, mount_overlay, namespaces, privileged, subordinate_ids, write_id_maps
from .cgroups import available_controllers

_WORK = "/tmp"


class Findings(TypedDict):
    """Each failure is the kernel's own words, empty where it worked."""

    as_root: bool
    namespaces: str
    proc: str
    overlay: str
    # Each controller that sandboxes can be limited by, with the version of control groups it is had by.
    cgroups: dict[str, int]
    # How many users a sandbox has.
    ids: int


def probe() -> Findings:
    as_root = privileged()
    findings: Findings = {
        "as_root": as_root,
        "namespaces": "",
        "proc": "",
        "overlay": "",
        "cgroups": {},
        "ids": 1,
    }
    findings["ids"] = MAPPED_COUNT if as_root or subordinate_ids() else 1
    findings["cgroups"] = available_controllers()
    here, there = socket.socketpair()
    try:
        flags = namespaces(network=False) | (0 if as_root else kernel.NEW_USER)
        child = kernel.clone(flags)
    except OSError as error:
        findings["namespaces"] = error.strerror or str(error)
        return findings
    if child == 0:
        here.close()
        _try_parts(there, as_root)
    there.close()
    if as_root or here.recv(1) == b"u":
        try:
            if not as_root:
                write_id_maps(child, as_root)
        except OSError as error:
            findings["namespaces"] = f"mapping ids: {error.strerror}"
        here.sendall(b"g" if not findings["namespaces"] else b"x")
    report = b""
    while chunk := here.recv(4096):
        report += chunk
    os.waitpid(child, 0)
    if not findings["namespaces"]:
        parts = report.decode().split("\0")
        if len(parts) == 3:
            findings["namespaces"], findings["proc"], findings["overlay"] = parts
        else:
            findings["namespaces"] = "the probe ended early"
    return findings


def _try_parts(channel: socket.socket, as_root: bool) -> None:
    report = ["", "", ""]
    try:
        if not as_root:
            channel.sendall(b"u")
        if channel.recv(1) != b"g":
            os._exit(1)
        for part, attempt in enumerate((_try_mounts, _try_proc, _try_overlay)):
            try:
                attempt(as_root)
            except OSError as error:
                report[part] = error.strerror or str(error)
                if part == 0:
                    break
        if as_root and not report[0]:
            try:
                os.unshare(kernel.NEW_USER)
            except OSError as error:
                report[0] = error.strerror or str(error)
        channel.sendall("\0".join(report).encode())
    finally:
        os._exit(0)


def _try_mounts(as_root: bool) -> None:
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", _WORK, "tmpfs", 0, "mode=755,size=1m")


def _try_proc(as_root: bool) -> None:
    os.mkdir(f"{_WORK}/proc")
    kernel.mount("proc", f"{_WORK}/proc", "proc")


def _try_overlay(as_root: bool) -> None:
    """A directory that is removed and made again is what fails where upper files can't be marked."""
    for path in ("lower/again", "upper", "work", "root"):
        os.makedirs(f"{_WORK}/{path}")
    mount_overlay(f"{_WORK}/root", [f"{_WORK}/lower"], _WORK, as_root)
    os.rmdir(f"{_WORK}/root/again")
    os.mkdir(f"{_WORK}/root/again")
