import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from scripted_bench import Bench, answer
from termrl.cli import main
from termrl.config import EvalConfig
from termrl.engine.catalog import resolve_model
from termrl.policy.rendering import make_renderer
from termrl.policy.scripted import ScriptedSampler
from termrl.policy.tokenizer import load_tokenizer
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.settings import RolloutSettings
from termrl.settings import to_dict
from termrl.store import Place, Run

MODEL = "termrl/tiny"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A run with two rollouts: one whose screens are always the same, one whose are not."""
    bench = Bench(tmp_path, load_tokenizer(resolve_model(MODEL)))
    renderer = make_renderer(bench.tokenizer, MODEL)
    settings = RolloutSettings(
        model_name=MODEL, trials_dir=tmp_path / "trials", max_turns=5, max_tokens=512, context_limit=4096
    )

    async def rollout(*answers: str) -> Any:
        sampler = ScriptedSampler(answers, bench.tokenizer, renderer)
        return await RolloutRunner(settings, renderer).run(bench.task, sampler, seed=0)

    steady = asyncio.run(
        rollout(answer("echo hello > /app/hello.txt", done=True, duration=1.0), answer(done=True))
    )
    other = answer("cat /proc/sys/kernel/random/uuid", done=True, duration=1.0)
    unsteady = asyncio.run(rollout(other, answer(done=True)))
    config = EvalConfig(model_name=MODEL, dataset=str(tmp_path / "tasks"), max_turns=5, max_tokens=512)
    with Run.create(tmp_path / "runs" / "one", kind="eval", settings=to_dict(config)) as run:
        run.record_fact("context_limit", 4096)
        run.add_rollout(Place("eval", 0, 0, 0), steady)
        run.add_rollout(Place("eval", 0, 1, 0), unsteady)
    return tmp_path / "runs"


def test_replay_says_whether_and_where_a_rollout_differs(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "one", f"run_root={stored}"]) == 0
    listed = capsys.readouterr().out
    assert "eval/0/0/0" in listed
    assert "solved" in listed
    assert main(["replay", "one", "eval/0/0/0", f"run_root={stored}"]) == 0
    assert "Every turn was shown the same, and the reward is the same." in capsys.readouterr().out
    assert main(["replay", "one", "eval/0/1/0", f"run_root={stored}", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["first_difference"]["turn"] == 2
    assert report["reward"] == {"stored": 0.0, "replayed": 0.0}


@pytest.mark.parametrize("which", ["eval/0/7/0", "nonsense", "eval/0/0/x"])
def test_a_rollout_that_is_not_there_is_refused(
    stored: Path, capsys: pytest.CaptureFixture[str], which: str
) -> None:
    assert main(["replay", "one", which, f"run_root={stored}"]) == 2
    assert which in capsys.readouterr().err
