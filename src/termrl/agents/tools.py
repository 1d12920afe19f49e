"""What an agent needs installed in its sandbox before it can start, for whoever prepares sandboxes ahead.

The local sandbox brings the terminal of our own agents along. Elsewhere tmux is installed as Harbor does it,
and an agent of Harbor's installs itself.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from harbor.agents.factory import AgentFactory
from harbor.environments.base import BaseEnvironment
from harbor.models.trial.config import AgentConfig

from termrl.agents.choice import import_path_of
from termrl.agents.stock import TmuxSession
from termrl.errors import UserError
from termrl.sandbox.freezing import AgentTools

TERMINAL_AGENTS = ("terminus-2", "bash", "oracle", "nop")
"""Those that need a terminal at most."""


def tools_of(agent: str, environment_type: str) -> AgentTools:
    """What to install for the agent on that backend, and the name that its content goes by."""
    if agent in TERMINAL_AGENTS:
        if environment_type == "local" or agent in ("oracle", "nop"):
            return AgentTools()
        return AgentTools("tmux", _install_tmux)
    import_path = import_path_of(agent)

    async def install(environment: BaseEnvironment) -> None:
        config = AgentConfig(import_path=import_path) if import_path else AgentConfig(name=agent)
        with TemporaryDirectory(prefix="termrl-agent-") as folder:
            made = AgentFactory.create_agent_from_config(config, logs_dir=Path(folder))
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
