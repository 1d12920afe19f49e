"""`termrl tasks check`: tries every task of a dataset before money is spent on it."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from termrl.cli import INTERRUPTED
from termrl.cli.arguments import Arguments, UsageError, parse, whole_number
from termrl.cli.choices import on_bad_task
from termrl.cli.columns import print_columns
from termrl.cli.fetching import tell

if TYPE_CHECKING:
    from termrl.evaluate.gate import GateReport
    from termrl.evaluate.gate_verdict import Finding
    from termrl.tasks import HarborTask

OPTIONS = (
    "attempts",
    "n_tasks",
    "task_ids",
    "environment_type",
    "environment_kwargs",
    "base_images",
    "sandbox_timeout",
    "n_parallel_envs",
    "run_name",
    "run_root",
    "on_bad_task",
)


@dataclass(frozen=True, slots=True)
class _SandboxOptions:
    environment_type: str
    environment_kwargs: tuple[str, ...] | None
    base_images: tuple[str, ...] | None
    sandbox_timeout: int | None

    @classmethod
    def of(cls, given: Arguments) -> "_SandboxOptions":
        def several(name: str) -> tuple[str, ...] | None:
            return tuple(given.options[name].split(",")) if name in given.options else None

        return cls(
            given.options.get("environment_type", "local"),
            several("environment_kwargs"),
            several("base_images"),
            whole_number(given.options, "sandbox_timeout", 0) or None,
        )


def help_text() -> str:
    return "\n".join(
        [
            "usage: termrl tasks check DATASET [attempts=3] [n_tasks=N] [task_ids=NAME,NAME]",
            "                          [environment_type=local] [n_parallel_envs=4] [run_name=NAME]",
            "                          [run_root=./runs] [on_bad_task=error|skip] [--json]",
            "                          [environment_kwargs=K=V,..] [base_images=A=B,..] [sandbox_timeout=S]",
            "",
            "Builds every task and tries it: with its oracle, which must pass every time, with an agent that",
            "does nothing, which must fail every time, and with cheating agents, none of which may pass.",
            "Says which tasks are broken, trivial, flaky or forgeable, with the evidence; which of them need",
            "processes to live on until they are graded; and which system files the oracle changes.",
            "",
            "What is unfit is written to RUN_ROOT/quarantine: `termrl train` and `termrl eval` of the set",
            "leave it out (quarantine=none: they don't). A check that was stopped goes on with the same",
            "command; one that is done says at once what it found. run_name=NAME begins another.",
            "Exit code 0: all tasks are fit; 1: some are not.",
        ]
    )


def run(arguments: list[str]) -> int:
    given = parse(arguments, words=["DATASET"], options=OPTIONS, flags=["json"])
    if not given.words:
        raise UsageError("Say which dataset to check: termrl tasks check DATASET.")
    dataset = given.words[0]
    attempts = whole_number(given.options, "attempts", 3)
    concurrency = whole_number(given.options, "n_parallel_envs", 4)
    if attempts < 1 or concurrency < 1:
        raise UsageError("attempts and n_parallel_envs must be 1 or more.")
    print(f"checking {dataset}", file=sys.stderr, flush=True)
    tasks = _tasks(given, dataset)
    try:
        report, run_path = _check(given, dataset, tasks, attempts, concurrency)
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from what is stored.", file=sys.stderr)
        return INTERRUPTED

    from termrl.tasks.quarantine import quarantine_path, write_quarantine

    path = quarantine_path(dataset, _run_root(given))
    write_quarantine(path, dataset, report.unfit, [task.task_name for task in tasks])
    shown = {**report.as_dict(), "run": str(run_path), "quarantine": str(path)}
    (run_path / "check.json").write_text(json.dumps(shown, indent=1) + "\n")
    if "json" in given.flags:
        print(json.dumps(shown, indent=1))
    else:
        _print(report, run_path, path)
    return 1 if report.unfit else 0


def _tasks(given: Arguments, dataset: str) -> "list[HarborTask]":
    from termrl.tasks.datasets import load_dataset

    found = load_dataset(dataset, on_bad_task=on_bad_task(given.options), told=tell)
    for bad in found.skipped:
        print(f"left out: {bad.reason}", file=sys.stderr)
    tasks = list(found.tasks)
    if wanted := [name for name in given.options.get("task_ids", "").split(",") if name]:
        names = {task.task_name for task in tasks}
        if unknown := [name for name in wanted if name not in names]:
            raise UsageError(f"{dataset} has no task {unknown[0]}: `termrl tasks list {dataset}` lists them.")
        tasks = [task for task in tasks if task.task_name in wanted]
    if "n_tasks" in given.options:
        count = whole_number(given.options, "n_tasks", 0)
        if count < 1:
            raise UsageError("n_tasks must be 1 or more.")
        tasks = tasks[:count]
    return tasks


def _check(
    given: Arguments, dataset: str, tasks: "list[HarborTask]", attempts: int, concurrency: int
) -> "tuple[GateReport, Path]":
    import asyncio

    from termrl.evaluate.gate import GateSettings, check_tasks
    from termrl.evaluate.gate_attempt import AttemptSettings
    from termrl.sandbox.choice import choose_backend, make_ready
    from termrl.sandbox.labels import labelled_run
    from termrl.store import Run
    from termrl.store.run import DATABASE

    kind = given.options.get("environment_type", "local")
    backend = choose_backend(_SandboxOptions.of(given))
    make_ready(backend, tasks)
    slug = re.sub(r"[^A-Za-z0-9.@=]+", "-", dataset).strip("-.") or "tasks"
    run_path = _run_root(given) / given.options.get(
        "run_name", f"check-{slug}-{re.sub('[^a-z0-9]+', '-', kind)}"
    )
    settings = {"dataset": dataset, "environment_type": kind}
    if (run_path / DATABASE).exists():
        opened = Run.open(run_path, write=True)
    else:
        opened = Run.create(run_path, kind="check", settings=settings)
    with opened as run, labelled_run(run_path.name):
        if run.kind != "check" or run.settings != settings:
            raise UsageError(
                f"The run {run_path} is not a check of {dataset} in {kind}: give another run_name."
            )
        gate = GateSettings(attempts, concurrency, AttemptSettings(backend, run_path / "trials"))
        report = asyncio.run(check_tasks(run, dataset, tasks, gate, _tell))
        return report, run_path


def _tell(finding: "Finding", done: int, total: int) -> None:
    why = f": {finding.reason}" if finding.reason else ""
    print(f"[{done} of {total}] {finding.task_name} is {finding.fitness}{why}", file=sys.stderr, flush=True)


def _print(report: "GateReport", run_path: Path, quarantine: Path) -> None:
    rows = [
        [
            finding.task_name,
            finding.fitness.value,
            finding.oracle,
            finding.no_op,
            finding.cheats,
            {True: "yes", False: "no", None: "?"}[finding.needs_processes],
            str(len(finding.system_files)),
            finding.reason,
        ]
        for finding in report.findings
    ]
    headers = ("task", "verdict", "oracle", "no-op", "cheats", "needs processes", "system files", "why")
    print_columns(headers, rows)
    for finding in report.findings:
        if finding.evidence:
            print(f"\n{finding.task_name} is {finding.fitness}, {finding.reason}:\n{finding.evidence}")
    from termrl.evaluate.gate_verdict import Fitness

    counts = ", ".join(f"{report.count(fitness)} {fitness}" for fitness in Fitness if report.count(fitness))
    print(
        f"\n{len(report.findings)} tasks: {counts}; {report.attempts} attempts in {report.seconds:.0f} s",
        end="",
    )
    print(f", {report.resumed} from before" if report.resumed else "")
    print(f"all that was seen: {run_path / 'check.json'}; quarantine: {quarantine}")


def _run_root(given: Arguments) -> Path:
    return Path(given.options.get("run_root", "./runs")).expanduser()
