"""Evaluations in real sandboxes by a scripted model: what is kept, what goes on, what is refused."""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from termrl.cli import main
from termrl.config import EvalConfig
from termrl.evaluate.digest import DatasetChangedError
from termrl.evaluate.files import OutputPathError
from termrl.evaluate.going_on import EvaluationChangedError, evaluation_name
from termrl.evaluate.results import read_results
from termrl.learn.progress import Silent
from termrl.policy.sampler import ModelUnavailableError, SampledAnswer

WITHOUT_TIMES = ("seconds",)


class Listening(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.phases: list[tuple[str, int | None]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def phase(self, name: str, total: int | None = None) -> None:
        self.phases.append((name, total))


class FailingSampler:
    """A model service that is down for as long as `down` says."""

    policy_version = 0

    def __init__(self, sampler: Any) -> None:
        self.down = True
        self.calls = 0
        self._sampler = sampler

    def for_attempt(self) -> "FailingSampler":
        attempt = FailingSampler(self._sampler.for_attempt())
        attempt.down = self.down
        return attempt

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        if self.down:
            raise ModelUnavailableError("the service is down")
        answer: SampledAnswer = await self._sampler.sample(prompt, max_tokens, seed)
        return answer


async def test_an_evaluation_is_scored_written_and_told(scripted: Any, tmp_path: Path) -> None:
    listening = Listening()
    config = scripted.config(attempts=2, output_path=str(tmp_path / "not" / "there" / "yet"))
    result = await scripted.evaluate(config, progress=listening)
    assert result.accuracy.value == 0.5
    assert result.pass_at_k[2].value == 0.5
    assert result.excluded == 0
    assert {row["result"]: row["count"] for row in result.results["counts"]["table"]} == {
        "PASS": 4,
        "FAIL": 4,
    }
    assert result.results["by_category"]["hello"]["accuracy"]["value"] == 1.0
    assert result.results["by_category"]["goodbye"]["accuracy"]["value"] == 0.0
    assert len(listening.notes) == 8
    assert any(
        note.startswith("[task-0:1] PASS reward 1.0 in ") and "[model=" in note and "/2 turns]" in note
        for note in listening.notes
    )
    output = tmp_path / "not" / "there" / "yet"
    assert read_results(output) == read_results(result.run_path) == json.loads(json.dumps(result.results))
    page = (output / "results.md").read_text()
    assert "| PASS | 4 | 50.0% |" in page
    assert "pass@2" in page
    records = [json.loads(path.read_text()) for path in sorted((output / "rollouts").iterdir())]
    assert len(records) == 8
    assert records[0]["task"] == "test/task-0"
    assert records[0]["passed"] is True
    assert "echo hello" in records[0]["turns"][0]["answer"]
    assert "Write hello to /app/hello.txt" in records[0]["turns"][0]["observed"]


async def test_runs_show_gives_the_results_of_an_evaluation(
    scripted: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = await scripted.evaluate(scripted.config(task_indices="0,2"))
    assert main(["runs", "show", str(result.run_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(result.results))
    assert main(["runs", "show", str(result.run_path)]) == 0
    shown = capsys.readouterr().out
    assert "PASS" in shown
    assert "50.0% [" in shown


async def test_the_results_are_the_same_at_concurrency_1_and_64(scripted: Any, tmp_path: Path) -> None:
    results = {}
    for concurrency in (1, 64):
        config = scripted.config(
            attempts=3, n_parallel_envs=concurrency, run_root=str(tmp_path / str(concurrency))
        )
        result = await scripted.evaluate(config)
        whole = json.loads((result.run_path / "results.json").read_text())
        results[concurrency] = {name: value for name, value in whole.items() if name not in WITHOUT_TIMES}
    assert results[1] == results[64]
    assert results[1]["counts"]["scored"] == 12


async def test_the_same_again_runs_nothing_and_more_attempts_are_added(scripted: Any) -> None:
    first = await scripted.evaluate(scripted.config(run_name="e", attempts=1))
    listening = Listening()
    again = await scripted.evaluate(scripted.config(run_name="e", attempts=1), progress=listening)
    assert listening.notes == ["4 rollouts are stored already, 0 are to be run"]
    assert again.results["tasks"] == first.results["tasks"]
    listening = Listening()
    more = await scripted.evaluate(scripted.config(run_name="e", attempts=2), progress=listening)
    assert len(listening.notes) == 1 + 4
    assert more.results["counts"]["scored"] == 8


async def test_excluded_rollouts_are_shown_both_ways_and_run_again(scripted: Any) -> None:
    service = FailingSampler(scripted.sampler())
    config = scripted.config(run_name="e", task_indices="0,1")
    down = await scripted.evaluate(config, sampler=service)
    assert down.excluded == 2
    assert down.accuracy.value is None
    both = down.results["scores"]
    assert both["excluded_as_failed"]["accuracy"]["value"] == 0.0
    table = {row["result"]: row["count"] for row in down.results["counts"]["table"]}
    assert table == {"PASS": 0, "FAIL": 0, "model_unavailable": 2}
    service.down = False
    up = await scripted.evaluate(config, sampler=service)
    assert up.excluded == 0
    assert up.accuracy.value == 1.0


async def test_an_excluded_rollout_is_given_up_after_three_sittings_unless_forced(scripted: Any) -> None:
    service = FailingSampler(scripted.sampler())
    for _ in range(3):
        listening = Listening()
        config = scripted.config(run_name="e", task_indices="0")
        await scripted.evaluate(config, sampler=service, progress=listening)
        assert any("EXCLUDED model_unavailable" in note for note in listening.notes)
    service.down = False
    given_up = await scripted.evaluate(config, sampler=service)
    assert given_up.excluded == 1
    left = await scripted.evaluate(
        scripted.config(run_name="e", task_indices="0", retry="none"), sampler=service
    )
    assert left.excluded == 1
    forced = await scripted.evaluate(
        scripted.config(run_name="e", task_indices="0", retry="excluded"), sampler=service
    )
    assert forced.excluded == 0


async def test_a_dataset_that_changed_is_refused_and_nothing_is_lost(scripted: Any, tasks: Path) -> None:
    config = scripted.config(run_name="e", task_indices="0")
    first = await scripted.evaluate(config)
    (tasks / "task-3" / "tests" / "test.sh").write_text("#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n")
    with pytest.raises(DatasetChangedError, match=r"1 changed \(test/task-3\)") as refusal:
        await scripted.evaluate(config)
    assert refusal.value.exit_code == 2
    assert read_results(first.run_path) == json.loads(json.dumps(first.results))


async def test_a_threshold_makes_partial_credit_a_pass(scripted: Any, tasks: Path) -> None:
    test = tasks / "task-0" / "tests" / "test.sh"
    test.write_text("#!/bin/bash\necho 0.6 > /logs/verifier/reward.txt\n")
    full = await scripted.evaluate(scripted.config(run_name="e", task_indices="0"))
    assert full.accuracy.value == 0.0
    half = await scripted.evaluate(scripted.config(run_name="e", task_indices="0", pass_threshold=0.5))
    assert half.accuracy.value == 1.0


async def test_settings_that_would_make_it_another_evaluation_are_refused(scripted: Any) -> None:
    await scripted.evaluate(scripted.config(run_name="e", task_indices="0"))
    with pytest.raises(EvaluationChangedError, match="begun with max_turns=50, not 7"):
        await scripted.evaluate(scripted.config(run_name="e", task_indices="0", max_turns=7))


def test_the_same_settings_find_the_same_run_and_others_do_not() -> None:
    name = evaluation_name(EvalConfig(dataset="x", attempts=2))
    assert name == evaluation_name(EvalConfig(dataset="x", attempts=2, n_parallel_envs=9, retry="excluded"))
    assert name != evaluation_name(EvalConfig(dataset="x", attempts=3))
    assert name != evaluation_name(EvalConfig(dataset="x", attempts=2, temperature=0.5))


async def test_an_output_path_that_cannot_be_written_is_said_before_the_first_rollout(
    scripted: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputPathError, match="can't be written to") as refusal:
        await scripted.evaluate(scripted.config(output_path=str(tmp_path / "file" / "out")))
    assert refusal.value.exit_code == 2
    assert not (tmp_path / "runs").exists()


async def test_harbor_view_opens_the_exported_job(scripted: Any) -> None:
    result = await scripted.evaluate(scripted.config(attempts=2, export="harbor"))
    jobs = result.run_path / "harbor"
    viewer, port = start_viewer(jobs)
    try:
        listed = get_when_up(f"http://127.0.0.1:{port}/api/jobs", viewer)
        (job,) = listed["items"] if isinstance(listed, dict) else listed
        assert job["name"] == result.run_path.name
        assert job["n_total_trials"] == job["n_completed_trials"] == 8
        trials = get_when_up(f"http://127.0.0.1:{port}/api/jobs/{job['name']}/trials", viewer)
        rewards = [trial["reward"] for trial in trials["items"]]
        assert sorted(rewards) == [0.0] * 4 + [1.0] * 4
        assert {trial["source"] for trial in trials["items"]} == {result.results["dataset"]["name"]}
    finally:
        viewer.terminate()
        viewer.wait(timeout=20)


def start_viewer(jobs: Path) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    harbor = Path(sys.executable).with_name("harbor")
    command = [harbor, "view", str(jobs), "--port", str(port), "--host", "127.0.0.1", "--no-build"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), port


def get_when_up(url: str, server: subprocess.Popen[bytes]) -> Any:
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return json.loads(response.read())
        except OSError:
            assert server.poll() is None, "the viewer ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.3)
