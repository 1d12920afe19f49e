"""A checkpoint as a policy to be asked, for programs that are not a run of termrl's.

The service is `base_url` or TINKER_BASE_URL, with TINKER_API_KEY; without either it is the embedded engine,
whose weights are those of the run whose directory `run_path` names.
"""

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from termrl.engine.catalog import tokenizer_source
from termrl.errors import UserError
from termrl.policy.asking import Policy
from termrl.policy.budget import ContextBudget
from termrl.policy.rendering import choose_renderer
from termrl.policy.sampler import TinkerSampler
from termrl.policy.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class Served:
    """Which weights, and how they are to be asked."""

    model_name: str
    checkpoint_path: str | None = None
    base_url: str | None = None
    run_path: str | None = None
    tokenizer: str | None = None
    renderer: str = "auto"
    context_limit: int | None = None
    max_tokens: int = 4096
    temperature: float = 1.0
    seed: int = 0


@asynccontextmanager
async def served_policy(served: Served) -> AsyncIterator[Policy]:
    import tinker

    base_url = served.base_url or os.environ.get("TINKER_BASE_URL")
    async with AsyncExitStack() as stack:
        address: dict[str, Any] = {"base_url": base_url}
        source: Path | str = served.tokenizer or tokenizer_source(served.model_name)
        if base_url is None and not os.environ.get("TINKER_API_KEY"):
            address, source = await _start_engine(served, stack)
        service = stack.enter_context(tinker.ServiceClient(**address))
        client = await service.create_sampling_client_async(
            model_path=served.checkpoint_path,
            base_model=None if served.checkpoint_path else served.model_name,
        )
        chosen = choose_renderer(
            load_tokenizer(source), served.model_name, name=served.renderer, keep_thinking=False
        )
        limit = served.context_limit or await _context_limit(service, served.model_name)
        sampler = TinkerSampler(
            client,
            policy_version=0,
            stop=chosen.renderer.get_stop_token_ids(),
            temperature=served.temperature,
        )
        yield Policy(sampler, chosen.renderer, ContextBudget(limit, served.max_tokens), served.seed)


async def _start_engine(served: Served, stack: AsyncExitStack) -> tuple[dict[str, Any], Path]:
    from termrl.cache import cache_directory
    from termrl.engine.catalog import resolve_model
    from termrl.engine.process import start_engine

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="termrl-engine-")))
    state = Path(served.run_path).expanduser() / "engine" if served.run_path else folder / "engine"
    engine = await stack.enter_async_context(
        start_engine(
            state,
            models=(served.model_name,),
            log_path=folder / "engine.log",
            cache_dir=cache_directory() / "compiled",
        )
    )
    return {"base_url": engine.base_url, "api_key": engine.api_key}, resolve_model(served.model_name)


async def _context_limit(service: Any, model_name: str) -> int:
    served = await service.get_server_capabilities_async()
    limits = {model.model_name: model.max_context_length for model in served.supported_models}
    limit = limits.get(model_name)
    if limit is None:
        raise UserError(f"The server does not say how long {model_name}'s context is: give context_limit.")
    return int(limit)
