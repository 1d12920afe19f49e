"""Harbor's verifier in one trip: made executable, run, and its reward brought back, all in one command.

For trials whose directory is not kept: the tests' own output stays in the sandbox. What is believed and how
it is read are Harbor's.
"""

import uuid
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.trial.paths import EnvironmentPaths
from harbor.verifier.verifier import Verifier

LEAN_VERIFIER = f"{__name__}:LeanVerifier"

_REWARDS = ("reward.json", "reward.txt")
_MOST_BYTES = 1 << 20


class LeanVerifier(Verifier):
    def __init__(self, *, environment: BaseEnvironment, **kwargs: Any) -> None:
        super().__init__(environment=_OneTrip(environment), **kwargs)  # type: ignore[arg-type]


class _OneTrip:
    """The environment as the verifier sees it: what need not be a trip of its own goes with the next."""

    def __init__(self, environment: BaseEnvironment) -> None:
        self._environment = environment
        self._first = ""
        self._border = uuid.uuid4().hex
        self._rewards: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    async def exec(self, command: str, **kwargs: Any) -> ExecResult:
        as_root = self._environment.default_user in (None, "root", 0)
        if command.startswith("chmod +x ") and kwargs.get("user") == "root" and as_root:
            self._first = f"{command}; "
            return ExecResult(stdout="", stderr="", return_code=0)
        first, self._first = self._first, ""
        result = await self._environment.exec(f"{first}{command}\n{self._bring_rewards()}", **kwargs)
        for part in (result.stdout or "").split(self._border)[1:]:
            name, _, text = part.partition("\n")
            self._rewards[name] = text
        return result

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        for name, text in self._rewards.items():
            Path(target_dir, name).write_text(text)

    def _bring_rewards(self) -> str:
        folder = EnvironmentPaths.verifier_dir
        return "\n".join(
            f"[ -f {folder}/{name} ] && echo {self._border}{name} && head -c {_MOST_BYTES} {folder}/{name}"
            for name in _REWARDS
        )
