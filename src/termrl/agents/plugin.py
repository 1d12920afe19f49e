"""The policy under Harbor's own command line: `harbor run --agent-import-path termrl.agents:Terminus`.

Model, checkpoint and service come as agent kwargs (`--ak checkpoint_path=tinker://...`), as `Served` has
them. Everything else is Terminus-2 as a rollout runs it.
"""

from contextlib import AsyncExitStack
from dataclasses import fields
from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from termrl.agents.served import Served, served_policy
from termrl.agents.terminus import PolicyTerminus2
from termrl.errors import UserError

_OURS = {field.name for field in fields(Served)} - {"model_name", "temperature"}


class Terminus(PolicyTerminus2):
    """`sampling_temperature` is the policy's; Harbor's own `temperature` is its LiteLLM's."""

    def __init__(
        self, *args: Any, model_name: str | None = None, sampling_temperature: float = 1.0, **kwargs: Any
    ) -> None:
        if model_name is None:
            raise UserError("termrl.agents:Terminus needs a model: harbor run -m MODEL.")
        ours = {name: kwargs.pop(name) for name in _OURS & set(kwargs)}
        super().__init__(*args, model_name=model_name, **kwargs)
        self._served = Served(model_name, temperature=float(sampling_temperature), **ours)
        self._open = AsyncExitStack()

    async def setup(self, environment: BaseEnvironment) -> None:
        self.attach(await self._open.enter_async_context(served_policy(self._served)))
        await super().setup(environment)

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        try:
            await super().run(instruction, environment, context)
        finally:
            await self._open.aclose()
