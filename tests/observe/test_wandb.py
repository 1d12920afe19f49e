import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wandb.proto import wandb_internal_pb2

from termrl.config import WandbConfig
from termrl.observe.wandb import WandbError, flat_numbers, require_wandb, wants_wandb


def test_wandb_is_off_unless_enabled_or_a_project_is_named() -> None:
    assert not wants_wandb(WandbConfig())
    assert wants_wandb(WandbConfig(enabled=True))
    assert wants_wandb(WandbConfig(project="p"))
    assert not wants_wandb(WandbConfig(run_name="r"))
    require_wandb(WandbConfig())


def test_what_wandb_lacks_is_said_before_the_run_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WandbError, match=r"pip install 'termrl\[wandb\]'"):
        require_wandb(WandbConfig(enabled=True))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", "/nowhere")
    with pytest.raises(WandbError, match="WANDB_API_KEY"):
        require_wandb(WandbConfig(project="p"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    require_wandb(WandbConfig(project="p"))


def test_nested_figures_are_named_by_dots_and_the_table_by_task_stays_away() -> None:
    metrics = {
        "reward": 0.5,
        "turns": {"p50": 2.0},
        "tasks": {"a": {"n": 1}},
        "cost": None,
        "outcomes": {"solved": 3},
    }
    assert flat_numbers(metrics) == {"reward": 0.5, "turns.p50": 2.0, "outcomes.solved": 3}


BLOCK, HEADER = 32768, 7
FULL, LAST = 1, 4


def records(directory: Path) -> list[Any]:
    """What W&B's own client wrote: a log in LevelDB's format of its own messages."""
    (file,) = directory.rglob("run-*.wandb")
    data = file.read_bytes()
    messages: Any = wandb_internal_pb2
    found: list[Any] = []
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (FULL, LAST):
            found.append(messages.Record.FromString(parts))
            parts = b""
    return found


@pytest.mark.timeout(600)
def test_a_real_run_keeps_its_figures_offline_through_the_official_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    command = (
        *(sys.executable, "-m", "termrl", "train", f"run_root={tmp_path}", "run_name=run"),
        *("wandb_project=terminals", "wandb_name=first", "max_steps=2", "batch_size=1", "group_size=2"),
        *("max_turns=1", "max_tokens=16", "eval_dataset=none", "eval_dataset_families=none"),
    )
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    kept = records(tmp_path / "run" / "wandb")
    (run,) = [record.run for record in kept if record.HasField("run")]
    assert (run.project, run.display_name, run.run_id) == ("terminals", "first", "run")
    history = [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in kept
        if record.HasField("history")
    ]
    ours = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["_step"] for row in history] == [0, 1]
    assert [row["reward"] for row in history] == [row["reward"] for row in ours]
    assert [row["rollouts"] for row in history] == [2, 2]
    assert not (tmp_path / "wandb").exists(), "W&B wrote beside the run"
