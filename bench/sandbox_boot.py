"""A local sandbox from a snapshot against `docker run` of an equal image: boot, run `true`, be gone.

    scripts/docker-engine.sh run .venv/bin/python bench/sandbox_boot.py [--json] [--check] [--rounds N]

The image is made of this host's own programs, imported into the engine and from there into termrl, so both
start from the same files. Also: memory a sandbox (what its control group is charged, kernel memory included,
and its share of the keeper), 200 at once, and what `run_command` adds to the time that the same command takes
on the host, by the clock and in CPU time, which a busy machine does not change. `--check` exits 1, with the
missed figure as its last line, unless a fifth of Docker's time at 1 and at 32 at once, 5 MB a sandbox, 200
without a failure and 10 ms are reached.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HARBOR_TELEMETRY", "off")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

IMAGE = "termrl-bench/small:1"
ROOT = Path(__file__).resolve().parents[1]
MANY = 200
COMMANDS = 100
TASK = {
    "task.toml": '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 512\nstorage_mb = 512\n',
    "instruction.md": "nothing\n",
    "tests/test.sh": "true\n",
    "environment/Dockerfile": f"FROM {IMAGE}\nRUN echo built > /built\n",
}
LIMITS = {
    "ratio at 1": 0.2,
    "ratio at 32": 0.2,
    "MB a sandbox": 5.0,
    "failures of 200": 0,
    "run_command ms": 10.0,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--check", action="store_true", help="exit 1 where a promised figure is missed")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed; the median counts")
    options = parser.parse_args()
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        print("There is no Docker engine: run this through `scripts/docker-engine.sh run`.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="termrl-bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        figures = asyncio.run(measure(Path(folder), options.rounds))
    missed = [
        f"{name} is {figures[name]}, not {limit} or less"
        for name, limit in LIMITS.items()
        if figures[name] > limit
    ]
    print(json.dumps(figures, indent=1) if options.json else table(figures))
    if options.check and missed:
        print("missed: " + "; ".join(missed))
        return 1
    return 0


def table(figures: dict[str, Any]) -> str:
    lines = [f"{name:<28}{value}" for name, value in figures.items()]
    return "\n".join(lines)


async def measure(folder: Path, rounds: int) -> dict[str, Any]:
    from termrl.sandbox.backends import Backend
    from termrl.sandbox.freezing import find_snapshots, freeze
    from termrl.sandbox.images import ImageStore
    from termrl.sandbox.layers import default_layers_dir, open_default_store
    from termrl.sandbox.snapshots import hand_over
    from termrl.tasks.task import load_harbor_task

    for name, text in TASK.items():
        (folder / "task" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "task" / name).write_text(text)
    task = load_harbor_task(folder / "task")
    built = make_image(folder)
    ImageStore(default_layers_dir()).add(IMAGE, f"docker:{IMAGE}", open_default_store())
    await freeze([task], Backend("local"))
    found = await find_snapshots([task], Backend("local"), "")
    handles = hand_over(found.handles)
    await one_local(task, handles, folder, 0)
    figures: dict[str, Any] = {}
    for at_once in (1, 32):
        local: list[float] = []
        docker: list[float] = []
        # By turns, so that whatever else the machine does falls on both.
        for _ in range(rounds):
            local.append(await timed(at_once, lambda n: one_local(task, handles, folder, n)))
            docker.append(await timed(at_once, lambda n: one_docker(built)))
        figures[f"local ms at {at_once}"] = round(1000 * statistics.median(local), 1)
        figures[f"docker run ms at {at_once}"] = round(1000 * statistics.median(docker), 1)
        figures[f"ratio at {at_once}"] = round(statistics.median(local) / statistics.median(docker), 3)
    return figures | await many(task, handles, folder)


async def timed(at_once: int, one: Callable[[int], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(at_once)))
    return time.perf_counter() - began


def make_image(folder: Path) -> str:
    """The image, and one built on it by the task's own Dockerfile."""
    root, packed = folder / "root", folder / "root.tar"
    subprocess.run([sys.executable, str(ROOT / "scripts/small_root.py"), str(root)], check=True)
    subprocess.run(["tar", "-C", str(root), "-cf", str(packed), "."], check=True)
    subprocess.run(["docker", "import", str(packed), IMAGE], check=True, capture_output=True)
    context = folder / "task" / "environment"
    tag = "termrl-bench/built:1"
    subprocess.run(["docker", "build", "-t", tag, str(context)], check=True, capture_output=True)
    return tag


def local_environment(task: Any, handles: str, folder: Path, number: int) -> Any:
    from harbor.models.trial.paths import TrialPaths

    from termrl.sandbox.local import LocalEnvironment

    return LocalEnvironment(
        environment_dir=task.task_dir / "environment",
        environment_name="bench",
        session_id=f"bench-{number}",
        trial_paths=TrialPaths(folder / "trial"),
        task_env_config=task.config.environment.model_copy(),
        network_policy=task.config.environment.resolve_baseline(),
        snapshots=handles,
    )


async def one_local(task: Any, handles: str, folder: Path, number: int) -> None:
    sandbox = local_environment(task, handles, folder, number)
    await sandbox.start(force_build=False)
    result = await sandbox.exec("true")
    await sandbox.stop(delete=True)
    if result.return_code != 0:
        raise RuntimeError(f"true ended with {result.return_code}: {result.stderr}")


async def one_docker(image: str) -> None:
    words = ["docker", "run", "--rm", "--network", "none", image, "bash", "-c", "true"]
    process = await asyncio.create_subprocess_exec(*words, stderr=asyncio.subprocess.PIPE)
    _, complaint = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"docker run ended with {process.returncode}: {complaint.decode()}")


async def many(task: Any, handles: str, folder: Path) -> dict[str, Any]:
    """200 at once: failures, memory a sandbox, and what a command costs in one of them."""
    sandboxes = [local_environment(task, handles, folder, number) for number in range(MANY)]
    before = await keeper_mb()
    began = time.perf_counter()
    started = await asyncio.gather(
        *(sandbox.start(force_build=False) for sandbox in sandboxes), return_exceptions=True
    )
    seconds = time.perf_counter() - began
    ran = await asyncio.gather(*(sandbox.exec("true") for sandbox in sandboxes), return_exceptions=True)
    held = await keeper_mb() - before + groups_mb()
    free = local_environment(task, handles, folder, MANY)
    free.task_env_config.memory_mb = None
    await free.start(force_build=False)
    limited, unlimited = await cost(sandboxes[0]), await cost(free)
    await free.stop(delete=True)
    stopped = await asyncio.gather(
        *(sandbox.stop(delete=True) for sandbox in sandboxes), return_exceptions=True
    )
    failures = sum(
        any(isinstance(outcome, BaseException) for outcome in outcomes)
        for outcomes in zip(started, ran, stopped, strict=True)
    )
    return {
        "200 booted in s": round(seconds, 2),
        "failures of 200": failures,
        "MB a sandbox": round(max(held, 0.0) / MANY, 2),
        "run_command ms": unlimited[0],
        "run_command ms with limits": limited[0],
        "run_command CPU ms": unlimited[1],
        "run_command CPU ms with limits": limited[1],
    }


async def cost(sandbox: Any) -> tuple[float, float]:
    """Milliseconds that a command takes inside beyond what it takes on the host: the median, and of CPU."""
    from termrl.sandbox.client import KeeperClient
    from termrl.sandbox.interface import HarborSandbox

    keeper = (await KeeperClient.of_this_loop()).pid
    machine = HarborSandbox(sandbox)
    inside, own = [], []
    used = cpu_seconds(keeper) + time.process_time()
    for _ in range(COMMANDS):
        began = time.perf_counter()
        await machine.run_command("true")
        inside.append(time.perf_counter() - began)
    used = cpu_seconds(keeper) + time.process_time() - used
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(COMMANDS):
        began = time.perf_counter()
        os.waitpid(os.posix_spawn("/bin/bash", ["bash", "-c", "true"], {}), 0)  # noqa: ASYNC221, ASYNC222
        own.append(time.perf_counter() - began)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used -= after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    median = statistics.median(inside) - statistics.median(own)
    return round(1000 * median, 2), round(1000 * used / COMMANDS, 2)


def cpu_seconds(pid: int) -> float:
    """Of a process and of those it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


async def keeper_mb() -> float:
    from termrl.sandbox.client import KeeperClient

    keeper = (await KeeperClient.of_this_loop()).pid
    lines = Path(f"/proc/{keeper}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def groups_mb() -> float:
    """What the control groups of this process's sandboxes are charged."""
    from termrl.sandbox.keeper.cgroups import labelled

    mine = [Path(path) for name, paths in labelled().items() if f".{os.getpid()}-" in name for path in paths]
    files = [
        file
        for path in mine
        for name in ("usage_in_bytes", "current")
        for file in path.glob(f"*/memory.{name}")
    ]
    if not files:
        raise RuntimeError("memory can't be measured here: no control group for it could be made")
    return sum(int(file.read_text()) for file in files) / 1e6


if __name__ == "__main__":
    sys.exit(main())
