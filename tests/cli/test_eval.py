"""`termrl eval` and its parts as they are typed: what is refused, what is printed, what is written."""

import json
from pathlib import Path
from typing import Any

import pytest

from termrl.cli import main
from termrl.config import EvalConfig
from termrl.settings import all_settings
from termrl.store import Checkpoint, Run


def results(directory: Path, name: str, passed: dict[str, list[bool | None]], digest: str = "d1") -> Path:
    """A results.json as an evaluation leaves it, with these attempts."""
    tasks = [
        {
            "index": index,
            "task": task,
            "category": "",
            "difficulty": "",
            "outcomes": [
                "sandbox_lost" if one is None else "solved" if one else "failed" for one in attempts
            ],
            "rewards": [None if one is None else float(one) for one in attempts],
            "passed": attempts,
        }
        for index, (task, attempts) in enumerate(passed.items())
    ]
    path = directory / name / "results.json"
    path.parent.mkdir(parents=True)
    dataset = {"name": "tasks", "digest": digest, "tasks": len(tasks), "chosen": len(tasks)}
    path.write_text(json.dumps({"schema": 1, "dataset": dataset, "tasks": tasks}))
    return path


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert main(list(arguments)) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an environment without keys."""
    monkeypatch.chdir(tmp_path)
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_help_of_eval_has_every_setting_with_its_default_and_description(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", "--help"]) == 0
    text = capsys.readouterr().out
    for setting in all_settings(EvalConfig).values():
        (line,) = (line for line in text.splitlines() if line.startswith(f"  {setting.name}="))
        assert f"{setting.name}={setting.shown_default}" in line
        assert setting.doc in line
        assert all(alias in line for alias in setting.aliases)


BAD_SETTINGS = [
    (["attempts=2", "temperature=0"], "every attempt would be the same answer again"),
    (["task_indices=500"], "task_indices asks for task 500, and the dataset has 120: 0 to 119."),
    (["task_ids=nothing"], "The dataset has no task 'nothing'"),
    (["task_ids=a", "n_tasks=3"], "task_ids and n_tasks are different ways to choose tasks"),
    (["dataset=termrl/basic"], "There is no dataset 'termrl/basic'"),
    (["model_name=anthropic/x"], "there is no ANTHROPIC_API_KEY: put it into .env"),
    (["model_name=Qwen/Qwen3-8B"], "Qwen/Qwen3-8B is served by Tinker but there is no TINKER_API_KEY"),
    (["base_url=http://127.0.0.1:9"], "base_url is http://127.0.0.1:9 but there is no TINKER_API_KEY"),
    (["model_name=openai/gpt-oss-20b"], "say model_service=tinker or model_service=litellm"),
    (["checkpoint_url=tinker://a/sampler_weights/b"], "has the checkpoint tinker://a/sampler_weights/b"),
    (["checkpoint_url=nothing"], "There are no runs under"),
    (["model_name=./nowhere"], "There is no model './nowhere'"),
    (["output_path=file/out"], "The results can't be written to file/out"),
    (["export=harbor", "keep_trials=none"], "export=harbor needs every trial's directory"),
    (["pass_threshold=0"], "pass_threshold is 0.0: it must be above 0."),
    (["attemts=2"], "There is no setting 'attemts': did you mean attempts?"),
]


@pytest.mark.parametrize(("arguments", "sentence"), BAD_SETTINGS)
def test_bad_input_is_one_sentence_exit_code_2_and_no_run(
    arguments: list[str], sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "file").write_text("")
    assert sentence in refusal(capsys, "eval", *arguments)
    assert not (here / "runs").exists()


def test_a_checkpoint_of_another_base_model_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run.create(here / "runs" / "old", kind="train", settings={"model_name": "other/model"}) as run:
        run.record_checkpoint(Checkpoint("last", 1, "tinker://a/weights/b", "tinker://a/sampler_weights/b"))
    for url in ("old", "tinker://a/sampler_weights/b"):
        said = refusal(capsys, "eval", f"checkpoint_url={url}")
        assert "is of other/model, and model_name is termrl/tiny: set model_name=other/model." in said


def test_compare_says_the_difference_its_interval_and_what_flipped(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results(here, "a", {f"t{i}": [i < 3] for i in range(10)})
    results(here, "b", {f"t{i}": [i < 7] for i in range(10)})
    results(here, "c", {f"t{i}": [i == 9] for i in range(10)})
    assert main(["eval", "compare", "a", "b", "c/results.json"]) == 0
    out = capsys.readouterr().out
    assert "+40.0 points [" in out
    assert "McNemar" in out
    assert "gained  t5  0% → 100%" in out
    assert "lost  t0  100% → 0%" in out
    assert (here / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_compare_as_json_pairs_by_task(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results(here, "a", {"x": [True, False], "y": [None, None], "z": [False, False]})
    results(here, "b", {"x": [True, True], "y": [True, True], "w": [True, True], "z": [False, True]})
    assert main(["eval", "compare", "a", "b", "--json"]) == 0
    compared: dict[str, Any] = json.loads(capsys.readouterr().out)["comparisons"]["b"]
    assert compared["tasks"] == 2
    assert compared["unpaired"] == 2
    assert compared["difference"] == 0.5
    assert compared["test"].startswith("permutation")
    assert main(["eval", "compare", "a", "b", "--json", "excluded=failed"]) == 0
    assert json.loads(capsys.readouterr().out)["comparisons"]["b"]["tasks"] == 3


def test_compare_refuses_different_datasets_unless_told(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results(here, "a", {"x": [True]})
    results(here, "b", {"x": [False]}, digest="d2")
    assert "--different-datasets" in refusal(capsys, "eval", "compare", "a", "b")
    assert main(["eval", "compare", "a", "b", "--different-datasets", "--json"]) == 0
    results(here, "c", {"w": [False]})
    assert "no scored task in common" in refusal(capsys, "eval", "compare", "a", "c")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compare", "a"], "Name two evaluations or more to compare"),
        (["compare", "a", "b"], "There are no runs under runs"),
        (["compare", "file", "b"], "can't be read as results of an evaluation"),
        (["power"], "Say how large a difference should be seen"),
        (["power", "difference=5"], "Name an evaluation, or say how many tasks and what rate"),
        (["power", "difference=0", "tasks=9", "rate=0.5"], "difference is 0: it must be above 0 to 100."),
        (["power", "difference=x", "tasks=9", "rate=0.5"], "difference is 'x', which is not a number."),
        (["power", "difference=5", "tasks=9", "rate=2"], "rate is 2: it must be from 0 to 1."),
    ],
)
def test_bad_input_to_the_parts_is_one_sentence(
    arguments: list[str], sentence: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "file").write_text("not json")
    assert sentence in refusal(capsys, "eval", *arguments)


def test_power_says_how_many_attempts_and_where_none_would_do(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "power", "tasks=89", "rate=0.3", "difference=5", "spread=5", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["attempts"] > 1
    assert answer["power_by_attempts"]["1"] < 0.8
    assert main(["eval", "power", "tasks=10", "rate=0.3", "difference=5", "spread=20"]) == 0
    assert "No number of attempts at 10 tasks shows 5 points" in capsys.readouterr().out
    results(here, "a", {f"t{i}": [i % 3 == 0, i % 2 == 0] for i in range(60)})
    assert main(["eval", "power", "a", "difference=10"]) == 0
    assert "60 tasks, pass rate" in capsys.readouterr().out
