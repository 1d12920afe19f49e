"""From what a verifier gives to the one number a rollout is compared by.

A verifier may give several rewards by name. `reward=` names the one that counts, or a weighted sum of them
such as `0.7*tests+0.3*style`; without it, the one called `reward` counts, else their mean. `reward_fn=` names
a function of one's own, asked with the rollout and its sandbox while that is still there.
"""

import importlib
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from termrl.errors import UserError
from termrl.policy.transcript import Turn
from termrl.sandbox.interface import SandboxInterface

_TERM = re.compile(r"(?:(?P<weight>\d+(?:\.\d*)?|\.\d+)\s*\*\s*)?(?P<key>[A-Za-z_][\w.:\[\]-]*)\Z")


class RewardRuleError(UserError):
    """`reward=` can't be read, or names a reward that a task's verifier does not give."""


class RewardFunctionError(UserError):
    """`reward_fn=` names no function that could be called."""


@dataclass(frozen=True, slots=True)
class Graded:
    """What a grader of one's own is given beside the sandbox; `rewards` are the verifier's, if it ran."""

    task_name: str
    task_dir: Path
    turns: Sequence[Turn]
    rewards: Mapping[str, float]


RewardFunction = Callable[[Graded, SandboxInterface], Any]


@dataclass(frozen=True, slots=True)
class RewardRule:
    """`weights` None: the reward called `reward`, else the mean of all."""

    weights: tuple[tuple[str, float], ...] | None = None

    @classmethod
    def parse(cls, text: str | None) -> "RewardRule":
        if text is None:
            return cls()
        weights = []
        for part in text.split("+"):
            term = _TERM.match(part.strip())
            if term is None:
                raise RewardRuleError(
                    f"reward is '{text}', of which '{part.strip()}' can't be read: give a verifier's key, or "
                    "a sum of them with weights, such as 0.7*tests+0.3*style."
                )
            weights.append((term["key"], float(term["weight"] or 1.0)))
        return cls(tuple(weights))

    def of(self, rewards: Mapping[str, float | int]) -> float:
        if self.weights is None:
            if "reward" in rewards:
                return float(rewards["reward"])
            return sum(float(value) for value in rewards.values()) / len(rewards)
        missing = [key for key, _ in self.weights if key not in rewards]
        if missing:
            raise RewardRuleError(
                f"reward asks for {', '.join(missing)}, which the verifier does not give; "
                f"it gives {', '.join(rewards)}."
            )
        return sum(weight * float(rewards[key]) for key, weight in self.weights)


def load_reward_function(path: str | None) -> RewardFunction | None:
    """The function that `module:function` names."""
    if path is None:
        return None
    module_name, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), name) if name else None
    except (ImportError, AttributeError) as error:
        raise RewardFunctionError(f"reward_fn is '{path}', which can't be imported: {error}.") from error
    if not callable(function):
        raise RewardFunctionError(
            f"reward_fn is '{path}': it must be module:function, a function of the rollout and its sandbox."
        )
    return function  # type: ignore[no-any-return]


async def call_reward_function(function: RewardFunction, graded: Graded, sandbox: SandboxInterface) -> float:
    reward = function(graded, sandbox)
    if inspect.isawaitable(reward):
        reward = await reward
    value = float(reward)
    if not math.isfinite(value):
        raise ValueError(f"the reward function gave {value}")
    return value
