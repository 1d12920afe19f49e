"""The gateway inside a sandbox that has no network: the address is the same in there as out here.

It is there for the agent's time only. A sandbox that can't be listened in, or is on the host's network, is
left as it is.
"""

from collections.abc import Awaitable, Callable
from socket import socket

from aiohttp import web
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial

from termrl.agents.gateway import Gateway

Listen = Callable[[int], Awaitable[socket | None]]


class Doorway:
    def __init__(self, trial: Trial, gateway: Gateway) -> None:
        self._trial = trial
        self._gateway = gateway
        self._site: web.BaseSite | None = None
        trial.add_hook(TrialEvent.AGENT_START, self._open)
        trial.add_hook(TrialEvent.VERIFICATION_START, self._agent_ended)

    async def _open(self, event: TrialHookEvent) -> None:
        listen: Listen | None = getattr(self._trial.agent_environment, "listen_inside", None)
        port = self._gateway.own_port
        if listen is None or port is None or self._site is not None:
            return
        listener = await listen(port)
        if listener is not None:
            self._site = await self._gateway.listen_on(listener)

    async def _agent_ended(self, event: TrialHookEvent) -> None:
        await self.close()

    async def close(self) -> None:
        site, self._site = self._site, None
        if site is not None:
            await site.stop()
