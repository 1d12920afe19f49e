"""A run with two Docker sandboxes open, one of them with a volume, for a test that kills it."""

import asyncio
import os
import sys
from pathlib import Path

from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from termrl.sandbox.backends import Backend
from termrl.sandbox.labels import labelled_run


async def main(folder: Path, image: str) -> None:
    with labelled_run("to be killed"):
        for number in range(2):
            environment = folder / f"task-{number}" / "environment"
            environment.mkdir(parents=True)
            (environment / "Dockerfile").write_text(f"FROM {image}\n")
            if number:
                compose = "services:\n  main:\n    volumes: ['kept:/kept']\nvolumes:\n  kept:\n"
                (environment / "docker-compose.yaml").write_text(compose)
            paths = TrialPaths(folder / f"trial-{number}")
            paths.mkdir()
            sandbox = EnvironmentFactory.create_environment_from_config(
                config=Backend("docker").environment_config(lifetime=600),
                environment_dir=environment,
                environment_name=f"killed-{number}",
                session_id=f"killed-{number}-{os.getpid()}",
                trial_paths=paths,
                task_env_config=EnvironmentConfig(),
                network_policy=NetworkPolicy(),
                phase_network_policies=[NetworkPolicy()],
            )
            await sandbox.start(force_build=False)
    print("ready", flush=True)
    await asyncio.sleep(600)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
