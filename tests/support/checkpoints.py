"""Weights for agents to be asked with: made on an engine, and asked as the agents ask."""

import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

os.environ.setdefault("TINKER_TELEMETRY", "0")

import tinker

from termrl.agents.served import Served, served_policy
from termrl.cache import cache_directory
from termrl.engine.process import EngineHandle, start_engine
from termrl.policy.asking import Answer

MODEL = "termrl/tiny"


def engine_in(directory: Path) -> AbstractAsyncContextManager[EngineHandle]:
    return start_engine(
        directory / "engine",
        models=(MODEL,),
        log_path=directory / "engine.log",
        cache_dir=cache_directory() / "compiled",
    )


async def trained(engine: EngineHandle) -> str:
    """Sampler weights one large step away from the base model's."""
    tokens = list(range(2, 34))
    with tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as service:
        client = await service.create_lora_training_client_async(base_model=MODEL, rank=4, seed=0)
        inputs = {
            "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=[31]),
            "weights": tinker.TensorData(data=[1.0] * 31, dtype="float32", shape=[31]),
        }
        datum = tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)
        for _ in range(3):
            await (await client.forward_backward_async([datum], loss_fn="cross_entropy")).result_async()
            await (await client.optim_step_async(tinker.AdamParams(learning_rate=1e-2))).result_async()
        saved = await (await client.save_weights_for_sampler_async(name="trained")).result_async()
        return str(saved.path)


async def ask(engine: EngineHandle, checkpoint: str | None, prompt: str, max_tokens: int) -> Answer:
    """What these weights answer to the prompt."""
    os.environ["TINKER_API_KEY"] = engine.api_key
    try:
        async with served_policy(Served(MODEL, checkpoint, engine.base_url, max_tokens=max_tokens)) as policy:
            return await policy.ask([{"role": "user", "content": prompt}])
    finally:
        del os.environ["TINKER_API_KEY"]
