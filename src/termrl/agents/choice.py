"""Which agent a name stands for.

`terminus-2` and `bash` ask the policy themselves. Any other name is one of Harbor's own agents, or an import
path `module:Class`; those know nothing of the policy and reach it, if they are to, through the gateway.
"""

import importlib

from harbor.models.agent.name import AgentName

from termrl.errors import UserError

OURS = {
    "terminus-2": "termrl.agents.terminus:PolicyTerminus2",
    "bash": "termrl.agents.bash:BashAgent",
}


class UnknownAgentError(UserError):
    """There is no agent by that name."""


def import_path_of(agent: str) -> str | None:
    """The import path of an agent that is not Harbor's own; None for one that is."""
    if agent in OURS:
        return OURS[agent]
    if ":" in agent:
        module, _, name = agent.partition(":")
        try:
            found = hasattr(importlib.import_module(module), name)
        except ImportError as error:
            raise UnknownAgentError(f"agent is '{agent}', which can't be imported: {error}.") from error
        if not found:
            raise UnknownAgentError(f"agent is '{agent}', but the module {module} has no {name}.")
        return agent
    if agent in harbor_agents():
        return None
    raise UnknownAgentError(
        f"there is no agent '{agent}'; there are {', '.join([*OURS, *harbor_agents()])}, or module:Class."
    )


def harbor_agents() -> list[str]:
    """Harbor's agents by name, but for those that have the same name here."""
    return sorted(each.value for each in AgentName if each.value not in OURS)
