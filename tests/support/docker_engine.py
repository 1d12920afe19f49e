"""A small image in the Docker engine, made of this host's own programs, and what the engine holds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

IMAGE = "termrl-test/small:1"
SCRIPT = Path(__file__).parents[2] / "scripts" / "small_root.py"


def docker(*words: str, check: bool = True) -> str:
    ended = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    if check and ended.returncode != 0:
        raise AssertionError(f"docker {' '.join(words)}: {ended.stderr}")
    return ended.stdout.strip()


def make_image(folder: Path, *programs: str) -> str:
    """The image, imported on first use: no registry is asked."""
    if not docker("images", "-q", IMAGE):
        root, packed = folder / "root", folder / "root.tar"
        subprocess.run([sys.executable, str(SCRIPT), str(root), *programs], check=True)
        subprocess.run(["tar", "-C", str(root), "-cf", str(packed), "."], check=True)
        docker("import", "--change", "ENV FROM_IMAGE=yes", "--change", "WORKDIR /app", str(packed), IMAGE)
    return IMAGE


def inspect(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(docker(kind, "inspect", name))[0]
    return found


def everything() -> dict[str, set[str]]:
    """All that the engine has, by kind."""
    return {
        "containers": set(docker("ps", "-aq").split()),
        "networks": set(docker("network", "ls", "-q").split()),
        "volumes": set(docker("volume", "ls", "-q").split()),
    }
