"""`termrl doctor`: whether this machine has what a run needs, and what to do about what it lacks."""

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from termrl import __version__
from termrl.cli.arguments import parse
from termrl.errors import UserError

if TYPE_CHECKING:
    from termrl.sandbox.preflight import Check

FREE_GB = 2
MODEL = "termrl/tiny"
KEYS = {
    "TINKER_API_KEY": "not set: base_url= can't name Tinker",
    "WANDB_API_KEY": "not set: no metrics to W&B",
    "HF_TOKEN": "not set: no gated models or datasets",
}


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl doctor [run_root=DIR] [--json]",
            "",
            "Checks that this machine has what a run needs, every backend that sandboxes can run on, and",
            "keys, and says what to do about what it lacks. `-` is not needed unless you ask for it.",
            "Exits with 1 if something that every run needs is missing.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, options=["run_root"], flags=["json"])
    as_json = "json" in given.flags
    if not as_json:
        print(f"termrl {__version__} on {platform.platform()}", flush=True)
    checks = []
    for check in _checks(Path(given.options.get("run_root", "./runs")).expanduser()):
        checks.append(check)
        if not as_json:
            state = "ok     " if check.ok else "MISSING" if check.required else "-      "
            print(f"  {state}  {check.name:<16} {check.detail}", flush=True)
            if not check.ok:
                print(f"{'':<28}{check.fix}")
    sound = all(check.ok for check in checks if check.required)
    if as_json:
        print(json.dumps({"ok": sound, "checks": [asdict(check) for check in checks]}, indent=1))
    elif sound:
        print("Everything a run needs is here.")
    return 0 if sound else 1


def _checks(run_root: Path) -> Iterator["Check"]:
    from termrl.sandbox.preflight import Check, check_local
    from termrl.sandbox.readiness import check_backends

    version = platform.python_version()
    yield Check(
        "Python",
        sys.version_info >= (3, 12),
        f"{version} at {sys.executable}",
        "run `make setup`, which finds or gets Python 3.12 or newer",
    )
    yield _disk(run_root, Check)
    yield from check_local()
    yield _model(Check)
    yield from _keys(Check)
    yield from check_backends()


def _disk(run_root: Path, check: type["Check"]) -> "Check":
    place = next(path for path in (run_root.absolute(), *run_root.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free / 1e9
    writable = os.access(place, os.W_OK)
    detail = f"{free:.1f} GB free at {place}" if writable else f"{place} cannot be written to"
    return check(
        "disk",
        writable and free >= FREE_GB,
        detail,
        f"make {FREE_GB} GB of room, or set run_root to another place",
    )


def _keys(check: type["Check"]) -> Iterator["Check"]:
    for name, what in KEYS.items():
        held = bool(os.environ.get(name))
        yield check(name, held, "set" if held else what, f"put {name}=... into .env", required=False)


def _model(check: type["Check"]) -> "Check":
    from termrl.engine.catalog import resolve_model

    try:
        return check("engine model", True, f"{MODEL} at {resolve_model(MODEL)}", "")
    except UserError as error:
        return check("engine model", False, str(error), "install termrl again: the model ships with it")
