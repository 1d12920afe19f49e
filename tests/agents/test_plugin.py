"""The same policy under stock Harbor's own command line."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TINKER_TELEMETRY", "0")

import tinker

from termrl.agents.served import Served, served_policy
from termrl.cache import cache_directory
from termrl.engine.catalog import resolve_model
from termrl.engine.process import EngineHandle, start_engine
from termrl.rollout.settings import LOCAL_ENVIRONMENT

Bench = Any
HARBOR = Path(sys.executable).parent / "harbor"
MODEL = "termrl/tiny"
LONGEST = 200


async def test_harbor_run_takes_the_agent_by_its_import_path_and_asks_the_checkpoint(
    bench: Bench, tmp_path: Path
) -> None:
    async with start_engine(
        tmp_path / "engine",
        models=(MODEL,),
        log_path=tmp_path / "engine.log",
        cache_dir=cache_directory() / "compiled",
    ) as engine:
        checkpoint = await trained_checkpoint(engine)
        command = [
            *(str(HARBOR), "run", "--path", str(bench.task.task_dir), "--jobs-dir", str(tmp_path / "jobs")),
            *("--agent-import-path", "termrl.agents:Terminus", "--model", MODEL, "--quiet"),
            *("--environment-import-path", LOCAL_ENVIRONMENT),
            *("--ak", f"checkpoint_path={checkpoint}", "--ak", f"base_url={engine.base_url}"),
            *("--ak", f"tokenizer={resolve_model(MODEL)}"),
            *("--ak", "max_turns=1", "--ak", f"max_tokens={LONGEST}", "--ak", "enable_summarize=false"),
        ]
        environ = {**os.environ, "TINKER_API_KEY": engine.api_key, "HARBOR_TELEMETRY": "off"}
        process = await asyncio.create_subprocess_exec(
            *command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        (result_path,) = (tmp_path / "jobs").glob("*/*/result.json")
        result = json.loads(result_path.read_text())
        assert result["exception_info"] is None, result["exception_info"]
        assert result["verifier_result"]["rewards"] == {"reward": 0.0}
        assert result["agent_info"]["name"] == "terminus-2"
        steps = json.loads((result_path.parent / "agent" / "trajectory.json").read_text())["steps"]
        asked, answered = (step["message"] for step in steps)
        assert answered == await ask(engine, checkpoint, asked)
        assert answered != await ask(engine, None, asked)


async def trained_checkpoint(engine: EngineHandle) -> str:
    """Sampler weights one large step away from the base model's."""
    tokens = list(range(2, 34))
    with tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as service:
        client = await service.create_lora_training_client_async(base_model=MODEL, rank=4)
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


async def ask(engine: EngineHandle, checkpoint: str | None, prompt: str) -> str:
    """What these weights answer to the prompt, asked as the agent asks."""
    os.environ["TINKER_API_KEY"] = engine.api_key
    served = Served(
        MODEL, checkpoint, engine.base_url, tokenizer=str(resolve_model(MODEL)), max_tokens=LONGEST
    )
    try:
        async with served_policy(served) as policy:
            return (await policy.ask([{"role": "user", "content": prompt}])).content
    finally:
        del os.environ["TINKER_API_KEY"]
