"""Harbor's trial, with a last word before its sandbox goes and without carrying off what nobody will keep.

When a trial's directory is to be removed anyway, the agent's logs and the artifacts stay in the sandbox: a
third of a short trial's trips. What the tests could need is still done: logs are brought to tests that
speak of the agent, and artifacts are collected where they or their hooks are part of the verification.
"""

from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path

from harbor.models.task.config import VerifierEnvironmentMode
from harbor.models.task.verifier_mode import resolve_task_verifier_mode
from harbor.models.trial.config import TrialConfig
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.multi_step import MultiStepTrial
from harbor.trial.single_step import SingleStepTrial
from harbor.trial.trial import Trial

from termrl.rollout.verifier import LEAN_VERIFIER


class LastWord(Trial):
    """A trial that calls `before_stop` once, when the agent is through and its sandbox still there."""

    before_stop: Callable[[], Awaitable[None]] | None = None
    _was_cancelled = False

    def call_before_stop(self, callback: Callable[[], Awaitable[None]]) -> None:
        self.before_stop = callback
        self.add_hook(TrialEvent.CANCEL, self._cancelled)

    async def _cancelled(self, event: TrialHookEvent) -> None:
        self._was_cancelled = True

    async def _stop_agent_environment(self) -> None:
        callback, self.before_stop = self.before_stop, None
        agent_ran = self.result.agent_execution is not None or bool(self.result.step_results)
        if callback is not None and agent_ran and not self._was_cancelled:
            await callback()
        await super()._stop_agent_environment()


class KeptTrial(LastWord, SingleStepTrial):
    """A single-step trial whose directory is kept."""


class SteppedTrial(LastWord, MultiStepTrial):
    """A trial of several steps."""


class FleetingTrial(LastWord, SingleStepTrial):
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


async def create_trial(config: TrialConfig, *, keep: bool) -> LastWord:
    """The trial of this configuration; one whose directory is not kept is spared what only fills it."""
    Trial._resolve_agent_skills(config)
    task, source = await Trial._load_task(config)
    kind: type[LastWord] = SteppedTrial if task.has_steps else KeptTrial if keep else FleetingTrial
    shared = resolve_task_verifier_mode(task.config) == VerifierEnvironmentMode.SHARED
    if kind is FleetingTrial and shared:
        config.verifier.import_path = LEAN_VERIFIER
    trial = kind(config, _task=task, _task_download_result=source)
    await trial._create_bridge()
    return trial


@cache
def tests_read_agent_logs(tests_dir: Path) -> bool:
    """Whether any of the tests mentions the agent: they may grade what it logged."""
    return any(b"agent" in path.read_bytes() for path in tests_dir.rglob("*") if path.is_file())
