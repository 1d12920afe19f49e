"""Messages of docs/troubleshooting.md: rewards, agents and the gateway."""

import asyncio
import socket
from collections.abc import Awaitable
from typing import cast

from harbor.environments.base import BaseEnvironment, ExecResult

from producers import Place, said_by, says
from termrl.agents.gateway import Gateway
from termrl.agents.plugin import Terminus
from termrl.agents.tools import tools_of
from termrl.agents.tunnel import Tunnel
from termrl.rollout.reward import RewardRule

said_by("agent is '…', but the module … has no …", "eval", "agent=json:Nothing")
said_by(
    "gateway_url is set but gateway_port is not: say which port on this machine it leads to.",
    *("train", "gateway_url=http://x"),
)
said_by(
    "gateway_url is '…': it must begin with http:// or https://.",
    *("train", "gateway_url=x", "gateway_port=1"),
)


@says("The gateway can't listen on port …: …; set another gateway_port.")
def _(place: Place) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        asyncio.run(Gateway(port=taken.getsockname()[1]).start())


said_by("reward is '…', of which '…' can't be read: …", "eval", "reward=0.5*")
said_by("reward_fn is '…', which can't be imported: …", "eval", "reward_fn=nowhere:grade")
said_by(
    "reward_fn is '…': it must be module:function, a function of the rollout and its sandbox.",
    *("eval", "reward_fn=json"),
)
said_by("there is no agent '…'; there are …, or module:Class.", "eval", "agent=nothing")
said_by("agent is '…', which can't be imported: …", "eval", "agent=nowhere:Agent")
said_by(
    "gateway_url and gateway_tunnel say the same twice: leave one out.",
    *("train", "gateway_url=http://x", "gateway_port=1", "gateway_tunnel=ssh"),
)


@says("reward asks for …, which the verifier does not give; it gives …")
def _(place: Place) -> None:
    RewardRule.parse("style").of({"tests": 1.0})


@says("termrl.agents:Terminus needs a model: harbor run -m MODEL.")
def _(place: Place) -> None:
    Terminus(logs_dir=place.path)


@says("gateway_tunnel can't be started: …: …")
def _(place: Place) -> None:
    asyncio.run(Tunnel.start("./nowhere {url}", "http://127.0.0.1:9"))


@says("gateway_tunnel printed no address in … s; its last words: …")
def _(place: Place) -> None:
    asyncio.run(Tunnel.start("echo no credentials for {url}", "http://127.0.0.1:9"))


class Unhelpful:
    """A sandbox in which no command does anything."""

    environment_name = "bare"

    async def exec(self, *_: object, **__: object) -> ExecResult:
        return ExecResult(stdout="", stderr="", return_code=127)


@says("tmux could not be installed in the environment …")
def _(place: Place) -> None:
    prepare = tools_of("terminus-2", "docker").prepare
    assert prepare is not None
    asyncio.run(_finished(prepare(cast(BaseEnvironment, Unhelpful()))))


async def _finished(work: Awaitable[None]) -> None:
    await work


@says("terminus-tinker has no --agent-kwarg …: it has …")
def _(place: Place) -> None:
    from termrl.agents.terminus_tinker import TerminusTinker

    TerminusTinker("termrl/tiny", colour="blue")
