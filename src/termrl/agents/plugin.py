"""The policy under Harbor's own command line: `harbor run --agent-import-path termrl.agents:Terminus`.

Model, checkpoint and service come as agent kwargs (`--ak checkpoint_path=tinker://...`), as `Served` has
them. Everything else is Terminus-2 as a rollout runs it.
"""

from contextlib import AsyncExitStack
from dataclasses import fields
from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from pydantic import Field

from termrl.agents.served import Served, served_policy
from termrl.agents.stock import Terminus2Options
from termrl.agents.terminus import PolicyTerminus2
from termrl.errors import UserError

_OURS = {field.name for field in fields(Served)} - {"model_name", "temperature"}


class TerminusOptions(Terminus2Options):
    """What `--ak` takes beside Terminus-2's own, whose `temperature` is its LiteLLM's, not the policy's."""

    checkpoint_path: str | None = Field(default=None, description="Sampler weights, tinker://...")
    base_url: str | None = Field(default=None, description="Tinker service; TINKER_BASE_URL otherwise.")
    run_path: str | None = Field(default=None, description="Run whose weights the embedded engine serves.")
    tokenizer: str | None = Field(default=None, description="Directory or name of the tokenizer.")
    renderer: str = Field(default="auto", description="Format of the prompts, by family.")
    context_limit: int | None = Field(default=None, description="Tokens of context to use at most.")
    max_tokens: int = Field(default=4096, description="Tokens an answer may have.")
    sampling_temperature: float = Field(default=1.0, description="Sampling temperature of the policy.")
    seed: int = Field(default=0, description="Seed of the sampling.")
    early_return: bool = Field(default=False, description="End a wait once its command is done.")


class Terminus(PolicyTerminus2):
    options_model = TerminusOptions

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
