"""What a task does without the policy, found out when it is needed and once a task.

Whether a verifier is sound: in a fresh sandbox that no agent touched it comes to an end and gives a reward.
Then one that hangs or gives nothing after an agent's work was broken by that work. And what looks changed
anyway: a program that the image brings or the task's own solution replaces is no sign of tampering.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig

from termrl.rollout.trial import create_trial
from termrl.rollout.verdict import verifier_rewards
from termrl.rollout.verification import Guard


class References:
    def __init__(self, trials_dir: Path, environment: EnvironmentConfig) -> None:
        self._trials_dir = trials_dir
        self._environment = environment
        self._sound: dict[Path, asyncio.Task[bool]] = {}
        self._changes: dict[Path, asyncio.Task[frozenset[str]]] = {}

    async def verifier_is_sound(self, task_dir: Path) -> bool:
        return await _once(self._sound, task_dir, self._find_soundness)

    async def own_changes(self, task_dir: Path) -> frozenset[str]:
        """The guarded paths that look changed without an agent's doing, or by the task's own solution."""
        return await _once(self._changes, task_dir, self._find_changes)

    async def _find_soundness(self, task_dir: Path) -> bool:
        _, rewarded = await self._run(task_dir, "nop")
        return rewarded

    async def _find_changes(self, task_dir: Path) -> frozenset[str]:
        signs, _ = await self._run(task_dir, "nop")
        if (task_dir / "solution").is_dir():
            signs |= (await self._run(task_dir, "oracle"))[0]
        return signs

    async def _run(self, task_dir: Path, agent: str) -> tuple[frozenset[str], bool]:
        config = TrialConfig(
            task=TaskConfig(path=task_dir),
            trials_dir=self._trials_dir,
            agent=AgentConfig(name=agent),
            environment=self._environment.model_copy(),
        )
        trial = await create_trial(config, keep=False)
        guard = Guard(trial)
        result = await trial.run()
        return frozenset(guard.signs), bool(verifier_rewards(result))


async def _once[T](
    known: dict[Path, asyncio.Task[T]], task_dir: Path, find: Callable[[Path], Coroutine[Any, Any, T]]
) -> T:
    """What was found out for this task, by whoever asked first."""
    if task_dir not in known:
        known[task_dir] = asyncio.create_task(find(task_dir))
    return await asyncio.shield(known[task_dir])
