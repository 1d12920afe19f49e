"""The same policy under stock Harbor's own command line."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from checkpoints import MODEL, ask, engine_in, trained
from termrl.engine.catalog import resolve_model
from termrl.rollout.settings import LOCAL_ENVIRONMENT

Bench = Any
HARBOR = Path(sys.executable).parent / "harbor"
LONGEST = 200


async def test_harbor_run_takes_the_agent_by_its_import_path_and_asks_the_checkpoint(
    bench: Bench, tmp_path: Path
) -> None:
    async with engine_in(tmp_path) as engine:
        checkpoint = await trained(engine)
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
        assert answered == (await ask(engine, checkpoint, asked, LONGEST)).content
        assert answered != (await ask(engine, None, asked, LONGEST)).content
