"""Checkpoints on a real Tinker-compatible server: known, of the right model, and evaluated end to end."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import tinker

from termrl import EvalConfig
from termrl.api import evaluate
from termrl.engine.process import EngineHandle, start_engine
from termrl.evaluate.checkpoint import (
    RefusedKeyError,
    UnknownCheckpointError,
    WrongBaseModelError,
    require_remote_checkpoint,
)


@pytest.fixture
async def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EngineHandle]:
    async with start_engine(tmp_path / "engine", log_path=tmp_path / "engine.log") as handle:
        monkeypatch.setenv("TINKER_API_KEY", handle.api_key)
        yield handle


@pytest.mark.timeout(600)
async def test_a_checkpoint_is_looked_up_and_evaluated(
    engine: EngineHandle, tasks: Path, tmp_path: Path
) -> None:
    with tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key) as service:
        training = await service.create_lora_training_client_async(base_model="termrl/tiny", rank=4)
        saved = await (await training.save_weights_for_sampler_async("final"))
        url = saved.path
    await require_remote_checkpoint(url, "termrl/tiny", base_url=engine.base_url)
    with pytest.raises(WrongBaseModelError) as wrong:
        await require_remote_checkpoint(url, "other/model", base_url=engine.base_url)
    assert f"The checkpoint {url} is of termrl/tiny, and model_name is other/model: " in str(wrong.value)
    for missing in (url.replace("final", "other"), "tinker://nobody/sampler_weights/nothing"):
        with pytest.raises(UnknownCheckpointError, match="The server has no checkpoint tinker://"):
            await require_remote_checkpoint(missing, "termrl/tiny", base_url=engine.base_url)

    settings: dict[str, Any] = {
        "dataset": str(tasks),
        "run_root": str(tmp_path / "runs"),
        "base_url": engine.base_url,
        "max_turns": 1,
        "max_tokens": 24,
        "task_indices": "0,1",
    }
    with pytest.raises(UnknownCheckpointError) as unknown:
        await evaluate(EvalConfig(**settings, checkpoint_url="tinker://nobody/sampler_weights/nothing"))
    assert unknown.value.exit_code == 2
    assert not (tmp_path / "runs").exists()

    result = await evaluate(EvalConfig(**settings, checkpoint_url=url))
    assert result.results["model_service"] == "tinker"
    assert result.results["checkpoint_url"] == url
    assert result.results["counts"]["scored"] == 2
    assert result.results["usage"]["turns"]["total"] == 2


async def test_a_checkpoint_on_a_server_is_named_by_its_path() -> None:
    with pytest.raises(UnknownCheckpointError) as refusal:
        await require_remote_checkpoint("last", "termrl/tiny", base_url="http://127.0.0.1:9")
    assert "checkpoint_url is 'last': on a server a checkpoint is named tinker://RUN/" in str(refusal.value)


@pytest.mark.timeout(600)
async def test_a_key_that_the_server_refuses_is_said(engine: EngineHandle) -> None:
    with pytest.raises(RefusedKeyError, match="The server refuses the key: "):
        await require_remote_checkpoint(
            "tinker://a/sampler_weights/b", "termrl/tiny", base_url=engine.base_url, api_key="tml-wrong"
        )


@pytest.mark.timeout(600)
async def test_several_benchmarks_are_evaluated_one_by_one_with_a_result_each(
    engine: EngineHandle, tasks: Path, tmp_path: Path
) -> None:
    result = await evaluate(
        EvalConfig(
            benchmarks=(str(tasks), "termrl/basics:held_out"),
            run_root=str(tmp_path / "runs"),
            base_url=engine.base_url,
            max_turns=1,
            max_tokens=24,
            n_tasks=1,
            output_path=str(tmp_path / "out"),
        )
    )
    assert len(result.parts) == 2
    assert result.results["counts"]["scored"] == 2
    assert [part.results["counts"]["scored"] for part in result.parts] == [1, 1]
    assert sorted(path.parent.name for path in (tmp_path / "out").glob("*/results.json")) == [
        "basics-held-out",
        "tasks",
    ]
