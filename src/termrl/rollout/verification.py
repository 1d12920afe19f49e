"""Between the agent and the tests: what the agent could have left to be believed is taken away.

Harbor grades in the sandbox the agent worked in and believes a reward file that is already there. Our own
sandbox ends the agent and makes the verifier's directories private (`prepare_verification`); in any other
environment the terminal is closed, the verifier's directory emptied, tests that the agent put there removed,
and afterwards a reward is left lying for a moment, to see whether something rewrites it. What was seen of an
agent's attempts is in `signs`.
"""

import asyncio
import shutil
from collections.abc import Iterable

from harbor.environments.base import BaseEnvironment
from harbor.models.trial.paths import EnvironmentPaths
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial

from termrl.rollout.tampering import Witness, look

TERMINAL = "terminus-2"
_BAIT_SECONDS = 1.2
_REWARD = f"{EnvironmentPaths.verifier_dir}/reward.txt"


class Guard:
    """Keeps one trial's verification honest; `signs` are the paths that gave an agent away."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._witness: Witness | None = None
        self.signs: list[str] = []
        trial.add_hook(TrialEvent.AGENT_START, self._agent_starts)
        trial.add_hook(TrialEvent.VERIFICATION_START, self._verification_starts)

    @property
    def _private(self) -> bool:
        return hasattr(self._trial.agent_environment, "prepare_verification")

    async def _agent_starts(self, event: TrialHookEvent) -> None:
        environment = self._trial.agent_environment
        if not self._private:
            if self._witness is None:
                self._witness = Witness(await look(environment))
            return
        if len(self._trial.result.step_results or []) > 1:  # a task's next step: back to the agent's view
            await environment.end_verification()  # type: ignore[attr-defined]

    async def _verification_starts(self, event: TrialHookEvent) -> None:
        if self._trial._is_agent_environment_stopped:
            return  # The tests run in a sandbox of their own.
        environment = self._trial.agent_environment
        if self._private:
            self._note(await environment.prepare_verification())  # type: ignore[attr-defined]
            return
        await self._end_terminal(environment)
        if self._witness is not None:
            self._note(self._witness.signs(await look(environment)))
        await self._clear(environment)

    def _note(self, signs: Iterable[str]) -> None:
        self.signs += [sign for sign in signs if sign not in self.signs]

    async def _end_terminal(self, environment: BaseEnvironment) -> None:
        await environment.exec(
            f"tmux kill-session -t {TERMINAL} 2>/dev/null || true", user=self._trial.task.config.agent.user
        )

    async def _clear(self, environment: BaseEnvironment) -> None:
        planted = "/tests" in self.signs
        if planted:
            await environment.exec("rm -rf /tests", user="root")
        await environment.empty_dirs([EnvironmentPaths.verifier_dir], chmod=True)
        if not environment.capabilities.mounted:
            verifier_dir = self._trial.paths.verifier_dir
            shutil.rmtree(verifier_dir, ignore_errors=True)
            verifier_dir.mkdir(parents=True, exist_ok=True)

    async def look_for_a_rewriter(self) -> None:
        """After the tests, where the directory can't be private: is a reward that lies there left alone?"""
        if self._private or self._trial._is_agent_environment_stopped:
            return
        environment = self._trial.agent_environment
        on_host = self._trial.paths.reward_text_path
        kept = on_host.read_bytes() if on_host.is_file() else None
        bait = "bait"
        await environment.exec(f"echo {bait} > {_REWARD}", user="root")
        await asyncio.sleep(_BAIT_SECONDS)
        result = await environment.exec(f"cat {_REWARD}; rm -f {_REWARD}", user="root")
        if (result.stdout or "").strip() != bait:
            self._note([_REWARD])
        if kept is not None:
            on_host.write_bytes(kept)
