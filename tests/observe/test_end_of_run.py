"""What a run leaves behind: the table, the picture and the metrics."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from termrl.errors import StorageError
from termrl.observe.curve import draw_curve, smooth
from termrl.observe.metrics import MetricsFile
from termrl.observe.table import next_commands, print_summary, show_rate


def rate(solve_rate: float | None, n: int = 96, excluded: int = 0) -> dict[str, Any]:
    if solve_rate is None:
        return {"solve_rate": None, "low": None, "high": None, "n": 0, "excluded": excluded}
    low, high = max(solve_rate - 0.08, 0.0), min(solve_rate + 0.08, 1.0)
    return {"solve_rate": solve_rate, "low": low, "high": high, "n": n, "excluded": excluded}


@pytest.fixture
def summary() -> dict[str, Any]:
    return {
        "run": "20250101-120000-tiny",
        "model_name": "termrl/tiny",
        "steps": 20,
        "held_out": {"base": rate(0.0), "after_warmup": rate(0.2), "after_rl": rate(0.7, excluded=2)},
        "held_out_demonstrated": {"base": rate(0.0), "after_warmup": rate(0.4), "after_rl": rate(0.8)},
        "held_out_undemonstrated": {"base": rate(0.0), "after_warmup": rate(0.1), "after_rl": rate(0.6)},
        "held_out_families": {"base": rate(None), "after_warmup": rate(0.05), "after_rl": rate(0.1)},
        "curve": [{"step": step, "solve_rate": 0.2 + step / 40, "n": 64} for step in range(20)],
        "seconds": {"warmup": 61.0, "train": 300.0, "total": 361.0},
        "tokens": {"prompt": 1234567, "sampled": 8901, "trained": 5},
    }


def printed(summary: dict[str, Any]) -> str:
    stream = io.StringIO()
    print_summary(summary, Console(file=stream, width=130))
    return stream.getvalue()


def test_the_table_has_every_rate_with_n_and_interval(summary: dict[str, Any]) -> None:
    text = printed(summary)
    assert "base model" in text
    assert "20%  [12, 28]  n=96" in text
    assert "70%  [62, 78]  n=96, 2 excluded" in text
    for row in ("held-out tasks", "families with demonstrations", "families without", "held-out families"):
        assert row in text
    assert "warm-up 1:01" in text
    assert "RL 5:00" in text
    assert "prompt 1,234,567" in text


def test_what_was_not_measured_is_not_shown(summary: dict[str, Any]) -> None:
    for row in ("held_out", "held_out_demonstrated", "held_out_families"):
        del summary[row]["base"]
    summary["held_out_undemonstrated"] = {"after_warmup": rate(None), "after_rl": rate(None)}
    text = printed(summary)
    assert "base model" not in text
    assert "families with demonstrations" not in text
    assert "held-out families" in text
    assert "Solve rate" not in printed({"run": "x", "held_out": {}})
    assert show_rate(rate(None)) == "–"


def test_three_commands_follow_and_name_the_run(summary: dict[str, Any]) -> None:
    commands = [command for command, _ in next_commands(summary)]
    assert len(commands) == 3
    assert commands[0] == "termrl runs show 20250101-120000-tiny --json"
    assert all(command in printed(summary) for command in commands)


@pytest.mark.parametrize("steps", [0, 1, 20])
def test_the_curve_is_a_picture_whatever_the_run_reached(
    tmp_path: Path, summary: dict[str, Any], steps: int
) -> None:
    summary["curve"] = [*summary["curve"][:steps], {"step": steps, "solve_rate": None, "n": 0}]
    path = tmp_path / "made" / "curve.png"
    draw_curve(json.loads(json.dumps(summary)), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    draw_curve({"run": "x"}, path)


def test_smoothing_keeps_the_length_and_the_level() -> None:
    assert smooth([]) == []
    assert smooth([1.0, 1.0, 1.0]) == [1.0, 1.0, 1.0]
    assert smooth([0.0, 3.0, 0.0, 3.0]) == [1.5, 1.0, 2.0, 1.5]


def test_metrics_are_one_line_a_step_and_begin_with_what_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "reward": 1}\n{"step": 1, "rew')
    metrics = MetricsFile(path, {0: {"reward": 0.5}})
    metrics.log(1, {"reward": 0.75})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    metrics.close()
    assert lines == [{"step": 0, "reward": 0.5}, {"step": 1, "reward": 0.75}]


def test_metrics_that_cannot_be_written_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"metrics could not be written") as refusal:
        MetricsFile(tmp_path / "missing" / "metrics.jsonl")
    assert refusal.value.exit_code == 1
