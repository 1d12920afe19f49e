"""Harbor's trial, without carrying to the host what nobody will keep.

When a trial's directory is to be removed anyway, the agent's logs and the artifacts stay in the sandbox: a
third of a short trial's trips. What the tests could need is still done: logs are brought to tests that
speak of the agent, and artifacts are collected where they or their hooks are part of the verification.
"""

from functools import cache
from pathlib import Path

from harbor.models.task.config import VerifierEnvironmentMode
from harbor.models.task.verifier_mode import resolve_task_verifier_mode
from harbor.models.trial.config import TrialConfig
from harbor.trial.single_step import SingleStepTrial
from harbor.trial.trial import Trial


class FleetingTrial(SingleStepTrial):
    """A single-step trial whose directory will not be kept."""

    async def _download_agent_logs(self) -> None:
        if tests_read_agent_logs(self.task.paths.tests_dir):
            await super()._download_agent_logs()

    async def _upload_agent_logs(self) -> None:
        if tests_read_agent_logs(self.task.paths.tests_dir):
            await super()._upload_agent_logs()

    async def _collect_artifacts(self, *, stop_main_before_sidecars: bool = False) -> None:
        separate = resolve_task_verifier_mode(self.task.config) == VerifierEnvironmentMode.SEPARATE
        if separate or self._all_collect_hooks():
            await super()._collect_artifacts(stop_main_before_sidecars=stop_main_before_sidecars)


async def create_trial(config: TrialConfig, *, keep: bool) -> Trial:
    """The trial of this configuration; one whose directory is not kept is spared what only fills it."""
    if keep:
        return await Trial.create(config)
    task, source = await Trial._load_task(config)
    if task.has_steps:
        return await Trial.create(config)
    return FleetingTrial(config, _task=task, _task_download_result=source)


@cache
def tests_read_agent_logs(tests_dir: Path) -> bool:
    """Whether any of the tests mentions the agent: they may grade what it logged."""
    return any(b"agent" in path.read_bytes() for path in tests_dir.rglob("*") if path.is_file())
