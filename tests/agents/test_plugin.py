"""The same policy under stock Harbor's own command line."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from termrl.cache import cache_directory
from termrl.engine.process import start_engine
from termrl.rollout.settings import LOCAL_ENVIRONMENT

Bench = Any
HARBOR = Path(sys.executable).parent / "harbor"


async def test_harbor_run_takes_the_agent_by_its_import_path(bench: Bench, tmp_path: Path) -> None:
    async with start_engine(
        tmp_path / "engine",
        models=("termrl/tiny",),
        log_path=tmp_path / "engine.log",
        cache_dir=cache_directory() / "compiled",
    ) as engine:
        command = [
            *(str(HARBOR), "run", "--path", str(bench.task.task_dir), "--jobs-dir", str(tmp_path / "jobs")),
            *("--agent-import-path", "termrl.agents:Terminus", "--model", "termrl/tiny", "--quiet"),
            *("--environment-import-path", LOCAL_ENVIRONMENT),
            *("--ak", f"base_url={engine.base_url}", "--ak", f"tokenizer={tiny()}", "--ak", "max_turns=2"),
            *("--ak", "max_tokens=64", "--ak", "enable_summarize=false"),
        ]
        process = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, "TINKER_API_KEY": engine.api_key, "HARBOR_TELEMETRY": "off"},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    results = [json.loads(path.read_text()) for path in (tmp_path / "jobs").glob("*/*/result.json")]
    (result,) = results
    assert result["exception_info"] is None, result["exception_info"]
    assert result["verifier_result"]["rewards"] == {"reward": 0.0}
    assert result["agent_info"]["name"] == "terminus-2"


def tiny() -> Path:
    from termrl.engine.catalog import resolve_model

    return resolve_model("termrl/tiny")
