"""What an agent needs installed in its sandbox before it can start, for whoever prepares sandboxes ahead.

The local sandbox brings the terminal of our own agents along. Elsewhere tmux is installed as Harbor does it,
and an agent of Harbor's installs itself.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from harbor.agents.factory import AgentFactory
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.name import AgentName
from harbor.models.trial.config import AgentConfig

from termrl.agents.stock import TmuxSession
from termrl.errors import UserError
from termrl.sandbox.freezing import AgentTools

TERMINAL_AGENTS = ("terminus-2", "bash", "oracle", "nop")
"""Those that need a terminal at most."""


class UnknownAgent(UserError):
    """An agent that neither we nor Harbor have."""


def tools_of(agent: str, environment_type: str) -> AgentTools:
    """What to install for the agent on that backend, and the name that its content goes by."""
    if agent in TERMINAL_AGENTS:
        if environment_type == "local" or agent in ("oracle", "nop"):
            return AgentTools()
        return AgentTools("tmux", _install_tmux)
    if ":" not in agent and agent not in {name.value for name in AgentName}:
        raise UnknownAgent(
            f"There is no agent '{agent}': `harbor` has {', '.join(n.value for n in AgentName)}."
        )

    async def install(environment: BaseEnvironment) -> None:
        named = {"import_path": agent} if ":" in agent else {"name": agent}
        with TemporaryDirectory(prefix="termrl-agent-") as folder:
            made = AgentFactory.create_agent_from_config(AgentConfig(**named), logs_dir=Path(folder))
            await made.setup(environment)

    return AgentTools(f"agent {agent}", install)


async def _install_tmux(environment: BaseEnvironment) -> None:
    session = TmuxSession(
        session_name="snapshot",
        environment=environment,
        logging_path=Path("/tmp/snapshot.pane"),
        local_asciinema_recording_path=None,
        remote_asciinema_recording_path=None,
    )
    if (await environment.exec("command -v tmux", user="root")).return_code != 0:
        await session._attempt_tmux_installation()
    if (await environment.exec("tmux -V", user="root")).return_code != 0:
        raise UserError(f"tmux could not be installed in the environment {environment.environment_name}.")
