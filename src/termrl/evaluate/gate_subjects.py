"""Who attempts a task when it is checked, and what each must come to.

The oracle must pass, the no-op must not, and none of the cheating agents of `rollout/` may. The lone oracle
works like the oracle, but all that it left running is ended before the tests: what passes only with those
processes needs them to live on.
"""

from dataclasses import dataclass

from harbor.models.agent.name import AgentName
from harbor.models.trial.config import AgentConfig

from termrl.rollout.cheats import CHEATS, CheatingAgent

CHEAT = "cheat:"


@dataclass(frozen=True, slots=True)
class Subject:
    """An agent under which a task is tried. `name` is also the stage of the run its attempts are kept in."""

    name: str
    watched: bool = False
    alone: bool = False

    @property
    def cheats(self) -> bool:
        return self.name.startswith(CHEAT)

    def agent(self) -> AgentConfig:
        if self.cheats:
            path = f"{CheatingAgent.__module__}:{CheatingAgent.__name__}"
            return AgentConfig(import_path=path, kwargs={"cheat": self.name.removeprefix(CHEAT)})
        known = AgentName.NOP if self.name == NO_OP.name else AgentName.ORACLE
        return AgentConfig(name=known.value)


ORACLE = Subject("oracle", watched=True)
LONE_ORACLE = Subject("lone oracle", watched=True, alone=True)
NO_OP = Subject("no-op")
CHEATERS: tuple[Subject, ...] = tuple(Subject(f"{CHEAT}{cheat.name}") for cheat in CHEATS)
