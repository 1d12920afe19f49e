"""`runs list` and `runs show` over runs that the store made."""

import json
from pathlib import Path

import pytest

from termrl.cli import main
from termrl.config import TrainConfig
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.settings import from_dict, to_dict
from termrl.store import Place, Run


def make_run(root: Path, name: str) -> Path:
    settings = to_dict(TrainConfig(run_name=name))
    with Run.create(root / name, kind="train", settings=settings) as run:
        for stage, solved in (("eval-after_warmup", 1), ("eval-after_rl", 6)):
            for index in range(8):
                outcome = Outcome.SOLVED if index < solved else Outcome.FAILED
                reward = 1.0 if index < solved else 0.0
                tags = {"set": "held_out", "family": "copy"}
                rollout = Rollout(f"copy-{index}", outcome, reward, (), Timings(), tags=tags)
                run.add_rollout(Place(stage, 0, index, 0), rollout)
        run.record_phase("warmup", seconds=61.0, done=True)
        run.record_phase("train", seconds=200.0, done=True)
    return root / name


def test_runs_list_shows_every_run_and_the_reason_where_one_cannot_be_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, "first")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.sqlite").write_bytes(b"not a database")
    assert main(["runs", "list", f"run_root={tmp_path}", "--json"]) == 0
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["first"]["model_name"] == "termrl/tiny"
    assert rows["torn"]["error"]
    assert main(["runs", "list", "--run_root", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "first" in text
    assert rows["torn"]["error"] in text


def test_runs_show_prints_the_table_and_the_same_figures_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path, "first")
    assert main(["runs", "show", "last", f"run_root={tmp_path}", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    before, after = summary["held_out"]["after_warmup"], summary["held_out"]["after_rl"]
    assert (before["solve_rate"], before["n"]) == (0.125, 8)
    assert (after["solve_rate"], after["n"]) == (0.75, 8)
    assert after["low"] < 0.75 < after["high"]
    assert summary["seconds"]["warmup"] == 61.0
    assert summary["picture"] is None

    (path / "learning-curve.png").write_bytes(b"")
    assert main(["runs", "show", "fir", f"run_root={tmp_path}"]) == 0
    text = capsys.readouterr().out
    assert "after warm-up" in text
    assert "75%" in text
    assert "n=8" in text
    assert "warm-up 1:01" in text
    assert str(path / "learning-curve.png") in text.replace("\n", "")
    assert text.count("termrl ") >= 3


def test_runs_show_prints_the_settings_a_run_was_made_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path, "first")
    assert main(["runs", "show", "first", f"run_root={tmp_path}", "--json", "--settings"]) == 0
    assert from_dict(json.loads(capsys.readouterr().out)["settings"]) == TrainConfig(run_name="first")
    assert main(["runs", "show", "first", f"run_root={tmp_path}", "--settings"]) == 0
    assert "warmup.enabled=false\n" in capsys.readouterr().out
