"""The task gate: every task is tried by those who must pass and those who must not, before money is spent.

A check is a run. An attempt that ended is in its store before the next begins, so the same command goes on
where it stopped; a task that was changed since is tried again. What cannot change a verdict any more is not
run: a task that is broken or trivial is spared the cheating agents.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from termrl.errors import UserError
from termrl.evaluate.gate_attempt import DIGEST, AttemptSettings, attempt, is_known
from termrl.evaluate.gate_subjects import CHEATERS, LONE_ORACLE, NO_OP, ORACLE, Subject
from termrl.evaluate.gate_verdict import UNFIT, Finding, Fitness, judge_task
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout
from termrl.store.run import Place, Run
from termrl.tasks import HarborTask
from termrl.tasks.contents import content_digest
from termrl.tasks.quarantine import Unfit

type Told = Callable[[Finding, int, int], None]
"""Told of each task's verdict, and how many of how many have theirs."""


@dataclass(frozen=True, slots=True)
class GateSettings:
    attempts: int
    concurrency: int
    trials: AttemptSettings


@dataclass(frozen=True, slots=True)
class GateReport:
    dataset: str
    findings: tuple[Finding, ...]
    seconds: float
    attempts: int
    resumed: int

    def count(self, fitness: Fitness) -> int:
        return sum(finding.fitness is fitness for finding in self.findings)

    @property
    def unfit(self) -> dict[str, Unfit]:
        return {
            finding.task_name: Unfit(finding.fitness.value, finding.reason)
            for finding in self.findings
            if finding.fitness in UNFIT
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset,
            "counts": {fitness.value: self.count(fitness) for fitness in Fitness},
            "n_tasks": len(self.findings),
            "attempts": self.attempts,
            "attempts_from_before": self.resumed,
            "seconds": round(self.seconds, 1),
            "tasks": [asdict(finding) for finding in self.findings],
        }


async def check_tasks(
    run: Run, dataset: str, tasks: Sequence[HarborTask], settings: GateSettings, told: Told
) -> GateReport:
    """Try every task and judge it; gives the verdicts in the tasks' order."""
    began = time.monotonic()
    gate = _Gate(run, settings)
    findings: dict[str, Finding] = {}

    async def check(task: HarborTask) -> None:
        finding = await gate.check(task)
        findings[task.task_name] = finding
        told(finding, len(findings), len(tasks))

    try:
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(check(task))
    except BaseExceptionGroup as failures:
        mendable = [failure for failure in failures.exceptions if isinstance(failure, UserError)]
        raise (mendable or failures.exceptions)[0] from None
    ordered = tuple(findings[task.task_name] for task in tasks)
    return GateReport(dataset, ordered, time.monotonic() - began, gate.run_now, gate.from_before)


class _Gate:
    def __init__(self, run: Run, settings: GateSettings) -> None:
        self._run = run
        self._settings = settings
        self._places = asyncio.Semaphore(settings.concurrency)
        self._stored = {
            (rollout.task_name, stage, place.member): (place, rollout)
            for stage in run.stages()
            for place, rollout in run.rollouts(stage, with_turns=False).items()
        }
        self._before = set(self._stored)
        self._groups = {task: place.group for (task, _, _), (place, _) in self._stored.items()}
        self.run_now = 0
        self.from_before = 0

    async def check(self, task: HarborTask) -> Finding:
        digest = await asyncio.to_thread(content_digest, task.task_dir)
        attempts: dict[str, list[Rollout]] = {}

        async def have(subject: Subject, count: int) -> list[Rollout]:
            got = await asyncio.gather(
                *(self._attempt(task, digest, subject, member) for member in range(count))
            )
            attempts[subject.name] = list(got)
            return attempts[subject.name]

        if _has_solution(task):
            # The first attempt goes alone: it builds what the others use, or shows that it cannot be built.
            oracles = await have(ORACLE, 1)
            if oracles[0].outcome is not Outcome.BUILD_FAILED:
                oracles = await have(ORACLE, self._settings.attempts)
            if not any(rollout.solved for rollout in oracles):
                return judge_task(task.task_name, attempts)
        idle = await have(NO_OP, self._settings.attempts)
        if any(rollout.solved or not rollout.outcome.scored for rollout in idle):
            return judge_task(task.task_name, attempts)
        if judge_task(task.task_name, attempts).processes:
            await have(LONE_ORACLE, 1)
        await asyncio.gather(*(have(cheater, 1) for cheater in CHEATERS))
        return judge_task(task.task_name, attempts)

    async def _attempt(self, task: HarborTask, digest: str, subject: Subject, member: int) -> Rollout:
        found = self._stored.get((task.task_name, subject.name, member))
        if found is not None and found[1].tags.get(DIGEST) == digest and is_known(found[1], subject):
            if (task.task_name, subject.name, member) in self._before:
                self._before.discard((task.task_name, subject.name, member))
                self.from_before += 1
            return found[1]
        async with self._places:
            rollout = await attempt(task, digest, subject, self._settings.trials)
        group = self._groups.setdefault(task.task_name, max(self._groups.values(), default=-1) + 1)
        place = Place(subject.name, 0, group, member)
        self._run.add_rollout(place, rollout)
        self._stored[task.task_name, subject.name, member] = (place, rollout)
        self.run_now += 1
        return rollout


def _has_solution(task: HarborTask) -> bool:
    steps = task.config.steps or []
    places = [task.task_dir / "steps" / step.name / "solution" for step in steps]
    places.append(task.task_dir / "solution")
    return any(_script(place) for place in places)


def _script(directory: Path) -> bool:
    return directory.is_dir() and any(path.stem == "solve" for path in directory.iterdir())
