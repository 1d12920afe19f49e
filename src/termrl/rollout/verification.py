"""Between the agent and the tests: what the agent could have left to be believed is taken away.

Harbor grades in the sandbox the agent worked in and believes a reward file that is already there. Our own
sandbox ends the agent and makes the verifier's directories private (`prepare_verification`); for any other
environment its terminal is closed and the verifier's directory emptied.
"""

import shutil

from harbor.models.trial.paths import EnvironmentPaths
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial

from termrl.agents.terminus import PolicyTerminus2


def protect_verification(trial: Trial) -> None:
    """Has the sandbox made ready before every verification of this trial, ahead of the tests' arrival."""

    async def make_ready(event: TrialHookEvent) -> None:
        await _make_ready(trial)

    async def give_back(event: TrialHookEvent) -> None:
        give_back_to_agent = getattr(trial.agent_environment, "end_verification", None)
        if give_back_to_agent is not None and trial.result.step_results:
            await give_back_to_agent()

    trial.add_hook(TrialEvent.VERIFICATION_START, make_ready)
    trial.add_hook(TrialEvent.AGENT_START, give_back)


async def _make_ready(trial: Trial) -> None:
    if trial._is_agent_environment_stopped:
        return  # The tests run in a sandbox of their own.
    environment = trial.agent_environment
    prepare = getattr(environment, "prepare_verification", None)
    if prepare is not None:
        await prepare()
        return
    session = PolicyTerminus2.name()
    await environment.exec(
        f"tmux kill-session -t {session} 2>/dev/null || true", user=trial.task.config.agent.user
    )
    await environment.empty_dirs([EnvironmentPaths.verifier_dir], chmod=True)
    if not environment.capabilities.mounted:
        shutil.rmtree(trial.paths.verifier_dir, ignore_errors=True)
        trial.paths.verifier_dir.mkdir(parents=True, exist_ok=True)
