"""Who attempts a task when it is checked, and what each must come to.

The oracle must pass, the no-op must not, and none of the cheating agents of `rollout/` may. The lone oracle
works like the oracle, but all that it left running is ended before the tests: what passes only with those
processes needs them to live on.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from harbor.models.agent.name import AgentName
from harbor.models.trial.config import AgentConfig

CHEATS_MODULE = "termrl.rollout.cheats"


@dataclass(frozen=True, slots=True)
class Subject:
    """An agent under which a task is tried. `name` is also the stage of the run its attempts are kept in."""

    name: str
    watched: bool = False
    alone: bool = False

    def agent(self) -> AgentConfig:
        if self.name == NO_OP.name:
            return AgentConfig(name=AgentName.NOP.value)
        if self.name.startswith(_CHEAT):
            kwargs = {"cheat": self.name.removeprefix(_CHEAT)}
            return AgentConfig(import_path=f"{CHEATS_MODULE}:CheatingAgent", kwargs=kwargs)
        return AgentConfig(name=AgentName.ORACLE.value)


_CHEAT = "cheat:"
ORACLE = Subject("oracle", watched=True)
LONE_ORACLE = Subject("lone oracle", watched=True, alone=True)
NO_OP = Subject("no-op")


def _cheaters() -> tuple[Subject, ...]:
    if find_spec(CHEATS_MODULE) is None:
        return ()
    return tuple(Subject(f"{_CHEAT}{cheat.name}") for cheat in import_module(CHEATS_MODULE).CHEATS)


CHEATERS: tuple[Subject, ...] = _cheaters()
