"""A run with three sandboxes and a command under way, for tests that kill it. Prints its keeper's pid."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox.client import KeeperClient
from termrl.sandbox.local import LocalEnvironment


async def main(folder: Path, layers: str) -> None:
    environment = folder / "environment"
    environment.mkdir()
    (environment / "Dockerfile").write_text("FROM termrl/host\n")
    paths = TrialPaths(folder / "trial")
    paths.mkdir()
    for n in range(3):
        sandbox = LocalEnvironment(environment, "t", f"t-{n}", paths, EnvironmentConfig(), layers_dir=layers)
        await sandbox.start(False)
        await sandbox.exec("setsid sleep 86399.5 > /dev/null 2>&1 &")
    running = asyncio.create_task(sandbox.exec("sleep 86399.5"))
    await sandbox.exec("sleep 0.1")
    keeper = (await KeeperClient.of_this_loop()).pid
    if os.fork() == 0:  # a child that keeps every descriptor open must not keep the sandboxes alive
        signal.pause()
    print(keeper, flush=True)
    await running


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
