"""An evaluation as a Harbor job directory: the leaderboard's own layout, which `harbor view` opens.

Every rollout that counts brings its trial's directory as Harbor left it; the job's config.json and
result.json are made by Harbor's own classes from the trials' results. Trials that were retried are not in it.
"""

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harbor.models.job.config import JobConfig
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trial.config import EnvironmentConfig, TaskConfig
from harbor.models.trial.result import TrialResult

from termrl.evaluate.files import write_whole
from termrl.rollout.record import Rollout

JOBS = "harbor"
"""The directory of jobs beside results.json: what `harbor view` is given."""


@dataclass(frozen=True, slots=True)
class HarborJob:
    """Where the job is, and how many of the rollouts ended before Harbor had a trial to keep."""

    path: Path
    trials: int
    without_trial: int


def export_job(
    directory: Path,
    rollouts: Sequence[Rollout],
    *,
    job_name: str,
    dataset: str,
    attempts: int,
    concurrency: int,
    timeout_multiplier: float,
) -> HarborJob:
    job = directory / JOBS / job_name
    draft = directory / JOBS / f".{job_name}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    results = []
    for rollout in rollouts:
        source = Path(rollout.trial_dir)
        if not rollout.trial_dir or not (source / "result.json").is_file():
            continue
        shutil.copytree(source, draft / source.name, copy_function=_link, symlinks=True)
        results.append(_result_of(draft / source.name, dataset))
    _write_job(draft, results, len(rollouts), job_name, attempts, concurrency, timeout_multiplier)
    shutil.rmtree(job, ignore_errors=True)
    draft.replace(job)
    return HarborJob(job, len(results), len(rollouts) - len(results))


def _result_of(trial_dir: Path, dataset: str) -> TrialResult:
    """The trial's result, which now says what dataset its task is from."""
    path = trial_dir / "result.json"
    result = TrialResult.model_validate(json.loads(path.read_text()) | {"source": dataset})
    path.unlink()  # A link to the run's own file, which stays as Harbor wrote it.
    write_whole(path, result.model_dump_json(indent=4))
    return result


def _write_job(
    directory: Path,
    results: Sequence[TrialResult],
    total: int,
    job_name: str,
    attempts: int,
    concurrency: int,
    timeout_multiplier: float,
) -> None:
    tasks = {str(result.config.task.path): TaskConfig(path=result.config.task.path) for result in results}
    agents = {result.config.agent.model_dump_json(): result.config.agent for result in results}
    config = JobConfig(
        job_name=job_name,
        jobs_dir=directory.parent,
        n_attempts=attempts,
        n_concurrent_trials=concurrency,
        timeout_multiplier=timeout_multiplier,
        tasks=list(tasks.values()),
        agents=list(agents.values()),
        environment=results[0].config.environment if results else EnvironmentConfig(),
    )
    started = [result.started_at for result in results if result.started_at is not None]
    finished = [result.finished_at for result in results if result.finished_at is not None]
    result = JobResult(
        id=uuid.uuid5(uuid.NAMESPACE_URL, job_name),
        started_at=min(started, default=datetime.now(UTC)),
        finished_at=max(finished, default=datetime.now(UTC)),
        n_total_trials=total,
        stats=JobStats.from_trial_results(list(results), n_total_trials=total),
    )
    write_whole(directory / "config.json", config.model_dump_json(indent=4))
    write_whole(directory / "result.json", result.model_dump_json(indent=4))


def _link(source: str, target: str) -> str:
    """A hard link where the disk has them: logs of thousands of trials need not be there twice."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)
    return target
