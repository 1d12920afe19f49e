"""An evaluation, from its plan to its results: what is attempted, what is kept, what is told on the way.

`plan_evaluation` finds out all that can be wrong with the input and makes nothing; `run_evaluation` runs
what is missing, writes each rollout's file as it ends, and the results at the end, or what there is of
them when it is broken off.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import chz

from termrl.config import EvalConfig
from termrl.evaluate.attempts import run_attempts
from termrl.evaluate.digest import dataset_digest, dataset_digests, require_same_dataset
from termrl.evaluate.files import OutputFiles, rollout_record
from termrl.evaluate.going_on import evaluation_name, go_on
from termrl.evaluate.harbor_job import export_job
from termrl.evaluate.intervals import quick_bounds
from termrl.evaluate.lines import rollout_line
from termrl.evaluate.results import EvalResult, build_results
from termrl.evaluate.scores import TaskScore, passes, task_scores
from termrl.learn.prices import Prices
from termrl.learn.progress import Progress, Silent
from termrl.learn.resume import free_name
from termrl.policy.sampler import Sampler
from termrl.policy.tokenizer import Tokenizer
from termrl.rollout.collect import Attempt, rollout_seed
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout
from termrl.settings import to_dict
from termrl.store import Place, Run
from termrl.store.run import DATABASE
from termrl.tasks.selection import Chosen, choose_tasks
from termrl.tasks.usable import fit_tasks, loaded_tasks

STAGE = "eval"
DIGESTS = "task_digests"
UNPRICED = Prices()
SCORE_EVERY = 1.0
"""Seconds between two computations of the running score's interval."""


@dataclass(frozen=True)
class Plan:
    """What is to be attempted, and where it is kept."""

    config: EvalConfig
    chosen: list[Chosen]
    digests: dict[str, str]
    run_path: Path
    files: OutputFiles

    @property
    def goes_on(self) -> bool:
        return (self.run_path / DATABASE).exists()


def plan_evaluation(config: EvalConfig, progress: Progress | None = None) -> Plan:
    """Raises a `UserError` for a dataset, a choice of tasks or a stored run that does not fit."""
    run_root = Path(config.run_root).expanduser()
    run_path = run_root / (config.run_name or evaluation_name(config))
    if config.behavior_if_run_exists == "new" and run_path.exists():
        run_path = run_path.with_name(free_name(run_path))
    config = chz.replace(config, run_name=run_path.name)
    note = (progress or Silent()).note
    tasks = loaded_tasks(config.dataset, on_bad_task=config.on_bad_task, note=note)
    chosen = choose_tasks(
        tasks,
        indices=config.task_indices,
        names=config.task_ids,
        n_tasks=config.n_tasks,
        seed=config.seed,
    )
    # After the choice: indices mean the same tasks, whatever is in quarantine.
    fit = fit_tasks(
        [one.task for one in chosen],
        config.dataset,
        run_root=run_root,
        quarantine=config.quarantine,
        note=note,
    )
    chosen = [one for one in chosen if one.task in fit]
    digests = dataset_digests(tasks)
    output = Path(config.output_path).expanduser() if config.output_path else run_path
    plan = Plan(config, chosen, digests, run_path, OutputFiles.at(output))
    if plan.goes_on:
        with Run.open(run_path) as run:
            go_on(run.settings, to_dict(config))
            require_same_dataset(config.dataset, run.fact(DIGESTS, digests), digests)
    return plan


async def run_evaluation(
    plan: Plan,
    run: Run,
    pool: RolloutPool,
    sampler: Sampler,
    *,
    tokenizer: Tokenizer | None,
    service: str,
    progress: Progress,
    prices: Prices = UNPRICED,
) -> EvalResult:
    """Runs what is missing and writes the results; `tokenizer` reads what was said, where it is ours."""
    config = plan.config
    run.record_fact(DIGESTS, plan.digests)
    telling = _Telling(plan, run, pool, progress, tokenizer)
    wanted = [
        Attempt(Place(STAGE, 0, one.index, attempt), one.task, sampler)
        for one in plan.chosen
        for attempt in range(config.attempts)
    ]
    began, done = time.monotonic(), False
    try:
        await run_attempts(
            run,
            pool,
            wanted,
            seed=config.seed,
            retry=config.retry,
            finished=telling.finished,
            starting=telling.starting,
            priced=lambda rollout: _priced(rollout, prices),
        )
        done = True
    finally:
        run.record_phase(STAGE, seconds=time.monotonic() - began, done=done)
        result = _write_results(plan, run, service)
    return result


def _priced(rollout: Rollout, prices: Prices) -> Rollout:
    """The rollout with what its tokens cost: by the file of prices, or else what the service said itself."""
    used = rollout.used
    if prices.prefill is None or prices.sample is None:
        return rollout
    cost = (used.prompt_tokens * prices.prefill + used.sampled_tokens * prices.sample) / 1e6
    return replace(rollout, usage=replace(used, cost=cost))


def _write_results(plan: Plan, run: Run, service: str) -> EvalResult:
    """The results of what is stored, in the run's directory and where else they were asked for."""
    config = plan.config
    stored = run.rollouts(STAGE, 0, with_turns=False)
    by_place = {(place.group, place.member): rollout for place, rollout in stored.items()}
    scores = task_scores(plan.chosen, by_place, attempts=config.attempts, threshold=config.pass_threshold)
    rollouts = [
        by_place[one.index, attempt]
        for one in plan.chosen
        for attempt in range(config.attempts)
        if (one.index, attempt) in by_place
    ]
    results = build_results(
        run_name=run.name,
        settings=to_dict(config),
        dataset={
            "name": config.dataset,
            "digest": dataset_digest(plan.digests),
            "tasks": len(plan.digests),
            "chosen": len(plan.chosen),
        },
        scores=scores,
        rollouts=rollouts,
        attempts=config.attempts,
        wall_seconds=run.phases()[STAGE]["seconds"],
        service=service,
    )
    OutputFiles.at(plan.run_path).write(results)
    if plan.files.results.parent != plan.run_path:
        plan.files.write(results)
    if config.export == "harbor":
        export_job(
            plan.files.rollouts.parent,
            rollouts,
            job_name=run.name,
            dataset=config.dataset,
            attempts=config.attempts,
            concurrency=config.n_parallel_envs,
            timeout_multiplier=config.timeout_multiplier,
        )
    return EvalResult(results, rollouts, plan.run_path, plan.files.results)


class _Telling:
    """What happens when a rollout has ended and is stored: its file, its line, the running score."""

    def __init__(
        self, plan: Plan, run: Run, pool: RolloutPool, progress: Progress, tokenizer: Tokenizer | None
    ) -> None:
        self._plan = plan
        self._run = run
        self._pool = pool
        self._progress = progress
        self._tokenizer = tokenizer
        self._passed: dict[int, list[bool]] = {}
        self._excluded = self._stored = 0
        self._told = 0.0
        self._figures: dict[str, float] = {}

    def starting(self, missing: int) -> None:
        self._progress.phase(f"evaluation: {self._plan.config.dataset}", missing)
        if self._stored:
            self._progress.note(f"{self._stored} rollouts are stored already, {missing} are to be run")
            self._progress.numbers(**self._score())

    def finished(self, place: Place, rollout: Rollout, fresh: bool) -> None:
        passed = passes(rollout, self._plan.config.pass_threshold)
        self._keep(place, rollout, passed, fresh)
        self._stored += not fresh
        if passed is None:
            self._excluded += 1
        else:
            self._passed.setdefault(place.group, []).append(passed)
        if fresh:
            self._progress.note(rollout_line(rollout, place.member, passed))
            self._progress.advance(1, **self._score(), sandboxes=self._pool.in_flight)

    def _keep(self, place: Place, rollout: Rollout, passed: bool | None, fresh: bool) -> None:
        path = self._plan.files.rollout(place.group, rollout.task_name, place.member)
        if not fresh:
            if path.exists():
                return
            rollout = self._run.rollout(place)
        record = rollout_record(
            rollout,
            index=place.group,
            attempt=place.member,
            seed=rollout_seed(self._plan.config.seed, place),
            passed=passed,
            tokenizer=self._tokenizer,
        )
        self._plan.files.write_rollout(path, record)

    def _score(self) -> dict[str, float]:
        now = time.monotonic()
        if self._passed and now - self._told > SCORE_EVERY:
            self._told = now
            shares = [sum(passed) / len(passed) for passed in self._passed.values()]
            low, high = quick_bounds(shares)
            self._figures = {"solve_rate": sum(shares) / len(shares), "low": low, "high": high}
        return self._figures | ({"excluded": self._excluded} if self._excluded else {})


def combine(parts: tuple[EvalResult, ...], config: EvalConfig) -> EvalResult:
    """The result of several benchmarks: the scores of all their tasks, and each one's own in `parts`."""
    scores = [
        replace(TaskScore.from_dict(row), task=f"{part.results['dataset']['name']}: {row['task']}")
        for part in parts
        for row in part.results["tasks"]
    ]
    rollouts = [rollout for part in parts for rollout in part.rollouts]
    datasets = [part.results["dataset"] for part in parts]
    results = build_results(
        run_name=", ".join(part.results["run"] for part in parts),
        settings=to_dict(config),
        dataset={
            "name": ", ".join(dataset["name"] for dataset in datasets),
            "digest": dataset_digest({dataset["name"]: dataset["digest"] for dataset in datasets}),
            "tasks": sum(dataset["tasks"] for dataset in datasets),
            "chosen": sum(dataset["chosen"] for dataset in datasets),
        },
        scores=scores,
        rollouts=rollouts,
        attempts=config.attempts,
        wall_seconds=sum(part.results["seconds"]["wall"] for part in parts),
        service=parts[0].results["model_service"],
    )
    place = Path(config.output_path).expanduser() if config.output_path else parts[0].run_path.parent
    return EvalResult(results, rollouts, parts[0].run_path, place, parts)
