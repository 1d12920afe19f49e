"""Between the agent and the tests: what the agent could have left to be believed is taken away.

Harbor grades in the sandbox the agent worked in and believes a reward file that is already there. Our own
sandbox ends the agent and makes the verifier's directories private (`prepare_verification`); in any other
environment the terminal is closed, the verifier's directory emptied, tests that the agent put there removed;
afterwards the tests are compared with what they should be, and a reward is left lying for a moment, to see
whether something rewrites it. What was seen of an agent's attempts is in `signs`; where what looks was
itself killed, nothing was seen, and `blinded` says so.
"""

import hashlib
import shutil
from collections.abc import Iterable

from harbor.environments.base import BaseEnvironment
from harbor.models.trial.paths import EnvironmentPaths
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial

from termrl.rollout.tampering import Witness, look, was_killed

TERMINAL = "terminus-2"
_TESTS = "/tests"
_BAIT = "bait"
_BAIT_SECONDS = 1.0
_REWARD = f"{EnvironmentPaths.verifier_dir}/reward.txt"


class Guard:
    """Keeps one trial's verification honest; `signs` are the paths that gave an agent away."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._witness: Witness | None = None
        self.signs: list[str] = []
        self.blinded = False
        trial.add_hook(TrialEvent.AGENT_START, self._agent_starts)
        trial.add_hook(TrialEvent.VERIFICATION_START, self._verification_starts)

    @property
    def _private(self) -> bool:
        return getattr(self._trial.agent_environment, "prepare_verification", None) is not None

    async def _agent_starts(self, event: TrialHookEvent) -> None:
        environment = self._trial.agent_environment
        if not self._private:
            if self._witness is None and (before := await look(environment)) is not None:
                self._witness = Witness(before)
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
        end_terminal = f"tmux kill-session -t {TERMINAL} 2>/dev/null"
        if self._trial.task.config.agent.user not in (None, "root", 0):
            await environment.exec(end_terminal, user=self._trial.task.config.agent.user)
        now = await look(environment, first=end_terminal)
        if now is None:
            self.blinded = True
        elif self._witness is not None:
            self._note(self._witness.signs(now))
        await self._clear(environment)

    def _note(self, signs: Iterable[str]) -> None:
        self.signs += [sign for sign in signs if sign not in self.signs]

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
        """After the tests, where their directories can't be private: are they, and a reward, left alone?"""
        trial = self._trial
        if self._private or trial._is_agent_environment_stopped or trial.result.verifier is None:
            return
        on_host = trial.paths.reward_text_path
        kept = on_host.read_bytes() if on_host.is_file() else None
        result = await trial.agent_environment.exec(
            f"find {_TESTS} -type f -exec sha256sum {{}} +; echo {_BAIT} > {_REWARD}; sleep {_BAIT_SECONDS}; "
            f"cat {_REWARD}; rm -f {_REWARD}",
            user="root",
        )
        if kept is not None:
            on_host.write_bytes(kept)
        if was_killed(result):
            self.blinded = True
            return
        said = (result.stdout or "").strip().splitlines()
        if not said or said[-1] != _BAIT:
            self._note([_REWARD])
        found = {path: digest for digest, _, path in (line.partition("  ") for line in said[:-1])}
        self._note(path for path, digest in self._tests().items() if found.get(path) != digest)

    def _tests(self) -> dict[str, str]:
        """What the tests are on the host, by where they are in the sandbox."""
        root = self._trial.task.paths.tests_dir
        return {
            f"{_TESTS}/{path.relative_to(root)}": hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*")
            if path.is_file()
        }
