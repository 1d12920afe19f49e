"""A run with 32 limited sandboxes open and something running in each, for tests that kill it."""

import asyncio
import sys
from pathlib import Path

from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox.client import KeeperClient
from termrl.sandbox.labels import labelled_run
from termrl.sandbox.local import LocalEnvironment


async def main(folder: Path, layers: str) -> None:
    environment = folder / "environment"
    environment.mkdir()
    (environment / "Dockerfile").write_text("FROM termrl/host\n")
    paths = TrialPaths(folder / "trial")
    paths.mkdir()
    limits = {"memory_mb": 64, "storage_mb": 16, "cpus": 1}

    async def open_one(number: int) -> None:
        config = EnvironmentConfig(**limits)
        sandbox = LocalEnvironment(environment, "t", f"t-{number}", paths, config, layers_dir=layers)
        await sandbox.start(False)
        await sandbox.exec("setsid sleep 86399.25 > /dev/null 2>&1 &")

    with labelled_run("thirty two"):
        await asyncio.gather(*(open_one(number) for number in range(32)))
        print((await KeeperClient.of_this_loop()).pid, flush=True)
        await asyncio.sleep(600)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
