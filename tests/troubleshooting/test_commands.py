"""Messages of docs/troubleshooting.md about what is typed, settings, evaluations, runs and set-up."""

import shutil
import sqlite3
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from termrl.config import EvalConfig
from termrl.engine.catalog import resolve_model
from termrl.store import Run
from termrl.store.run import DATABASE

type Producer = Callable[[Any], list[str] | None]
type Prints = Callable[[str, Producer], None]
PRODUCERS: dict[str, Producer] = {}
"""By message: makes what goes wrong, and gives the command that says so (or raises it itself)."""


def says(message: str) -> Callable[[Producer], Producer]:
    def keep(producer: Producer) -> Producer:
        PRODUCERS[message] = producer
        return producer

    return keep


def said_by(message: str, *command: str) -> None:
    PRODUCERS[message] = lambda place: list(command)


said_by("There is no command `termrl …`: did you mean …", "evl")
said_by("There is no setting '…': did you mean …", "eval", "attemts=2")
said_by("'…' is not a setting: settings are written key=value or --key value.", "eval", "tasks")
said_by("… is '…', which is not ….", "eval", "attempts=many")
said_by("… and … are two names of one setting: give one of them.", "eval", "dataset=a", "tasks_dir=b")
said_by("'…' is not something this command takes: …", "eval", "power", "--jsno")
said_by("The settings file '…' could not be read (…): …", "eval", "config=nowhere.toml")
said_by("… is …: it must be … or more.", "eval", "attempts=0")
said_by("… is …: it must be above 0.", "eval", "timeout_multiplier=0")
said_by(
    "max_tokens is … and context_limit …: an answer must leave room for its prompt; lower max_tokens.",
    *("eval", "max_tokens=9", "context_limit=9"),
)
said_by(
    "proactive_summarization_threshold is set but enable_summarize is off: …",
    *("eval", "proactive_summarization_threshold=9", "enable_summarize=false"),
)
said_by("base_url is '…': it must begin with http:// or https://.", "eval", "base_url=localhost")
said_by("run_name is '…': a name cannot be empty, be dots, or hold a '/'; …", "eval", "run_name=a/b")
said_by(
    "attempts is … and temperature 0: every attempt would be the same answer again, …",
    *("eval", "attempts=2", "temperature=0"),
)
said_by("… are different ways to choose tasks: give one of them.", "eval", "task_ids=a", "n_tasks=1")
said_by(
    "… chooses tasks of one dataset, and benchmarks names …: evaluate them one by one.",
    *("eval", "benchmarks=a,b", "task_ids=c"),
)
said_by(
    "export=harbor needs every trial's directory, and keep_trials is …: set keep_trials=all.",
    *("eval", "export=harbor", "keep_trials=none"),
)
said_by("There is no dataset '…'…: …", "eval", "dataset=termrl/nothing")
said_by("task_indices asks for task …, and the dataset has …: …", "eval", "task_indices=999")
said_by("task_indices has '…', which is not a place or a range such as 3-5.", "eval", "task_indices=x")
said_by("task_indices has '…', a range from high to low.", "eval", "task_indices=5-3")
said_by("The dataset has no task '…': …", "eval", "task_ids=nothing")
said_by(
    "There is no model …: give one of …",
    *("eval", "model_name=./nowhere"),
)
said_by(
    "base_url is … but there is no TINKER_API_KEY: put it into .env, or let `termrl setup` ask for it.",
    *("eval", "base_url=http://127.0.0.1:9"),
)
said_by(
    "Nobody answers at … (…): start the server, or give another base_url.",
    *("eval", "model_name=openai/x", "base_url=http://127.0.0.1:9/v1"),
)
said_by(
    "checkpoint_url is …, and litellm knows no checkpoints: …",
    *("eval", "model_name=hosted_vllm/x", "model_service=litellm", "checkpoint_url=tinker://a/weights/b"),
)
said_by("… is …: it must be … to …", "eval", "power", "difference=0", "tasks=9", "rate=0.5")
said_by("tasks is 0: it takes at least one.", "eval", "power", "difference=5", "tasks=0", "rate=0.5")
said_by("… is served by Tinker but there is no TINKER_API_KEY: …", "eval", "model_name=Qwen/Qwen3-8B")
said_by("… is reached through litellm but there is no …: …", "eval", "model_name=anthropic/x")
said_by("… is a model on Tinker and could be one at OpenAI too: …", "eval", "model_name=openai/gpt-oss-20b")
said_by("There are no runs under …: …", "runs", "show", "last")
said_by("Name two evaluations or more to compare: `termrl eval compare A B`.", "eval", "compare", "a")
said_by("Say how large a difference should be seen, in points: difference=5.", "eval", "power")
said_by(
    "Name an evaluation, or say how many tasks and what rate: tasks=89 rate=0.3.",
    *("eval", "power", "difference=5"),
)
said_by("There is no service '…'; there are …", "setup", "nothing")
said_by("The input ended before every key was given.", "setup", "openai")


@says("The settings file … is not TOML: …")
def _(place: Any) -> list[str]:
    return ["eval", f"config={place.file('settings.toml', 'attempts = ')}"]


@says("There is no task in …: no directory below it has a task.toml.")
def _(place: Any) -> list[str]:
    place.file("tasks/readme")
    return ["eval", "dataset=tasks"]


@says("The task … has no …, so nothing can grade it; …")
def _(place: Any) -> list[str]:
    shutil.rmtree(place.task() / "tests")
    return ["eval", "dataset=tasks"]


@says("… is not valid TOML: …")
def _(place: Any) -> list[str]:
    (place.task() / "task.toml").write_text("[agent\n")
    return ["eval", "dataset=tasks"]


@says("Two tasks are named …")
def _(place: Any) -> list[str]:
    for name in ("a", "b"):
        task = place.task(f"tasks/{name}")
        text = (task / "task.toml").read_text()
        if "[task]" not in text:
            (task / "task.toml").write_text(f'{text}\n[task]\nname = "test/same"\n')
    return ["eval", "dataset=tasks"]


@says("The dataset … is not what it was when this evaluation began: …")
def _(place: Any) -> list[str]:
    place.task()
    place.evaluation(EvalConfig(dataset="tasks", run_name="e"))
    return ["eval", "run_name=e"]


@says("The evaluation was begun with …, not …: …")
def _(place: Any) -> list[str]:
    place.evaluation(EvalConfig(run_name="e"))
    return ["eval", "run_name=e", "max_turns=3"]


@says("The model directory … is incomplete: it has no …")
def _(place: Any) -> list[str]:
    model = Path(shutil.copytree(resolve_model("termrl/tiny"), place.path / "model"))
    (model / "tokenizer.json").unlink()
    return ["eval", "model_name=./model"]


@says("no tokenizer could be loaded for the model …")
def _(place: Any) -> list[str]:
    place.monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    place.monkeypatch.setenv("TINKER_API_KEY", "tml-none")
    return ["eval", "model_name=nobody/nothing"]


@says("None of the runs under … has the checkpoint …: …")
def _(place: Any) -> list[str]:
    place.run("old", model_name="termrl/tiny")
    return ["eval", "checkpoint_url=tinker://a/sampler_weights/b"]


@says("The run … has no checkpoint yet: …")
def _(place: Any) -> list[str]:
    place.run("old", model_name="termrl/tiny")
    return ["eval", "checkpoint_url=old"]


@says("The checkpoint … is of …, and model_name is …: …")
def _(place: Any) -> list[str]:
    place.run("old", checkpoint="tinker://a/sampler_weights/b", model_name="other")
    return ["eval", "checkpoint_url=old"]


@says("There is no run '…' under …; there are …")
def _(place: Any) -> list[str]:
    place.run("old")
    return ["runs", "show", "new"]


@says("'…' fits …: type more of the name.")
def _(place: Any) -> list[str]:
    place.run("old-1")
    place.run("old-2")
    return ["runs", "show", "old"]


@says("… is not a run: it has no …. `termrl runs list` shows the runs.")
def _(place: Any) -> None:
    Run.open(place.path)


@says("… has store version …, this termrl reads version …: …")
def _(place: Any) -> list[str]:
    database = sqlite3.connect(place.run("old") / DATABASE)
    database.execute("PRAGMA user_version=77")
    database.close()
    return ["runs", "show", "old"]


@says("Another termrl process is writing the run …: wait for it, or use another run_name.")
def _(place: Any) -> None:
    path = place.run("old")
    with Run.open(path, write=True):
        Run.open(path, write=True)


@says("Could not make the run directory …")
def _(place: Any) -> None:
    Run.create(place.file("file") / "run", kind="eval", settings={})


@says("Could not write … Everything stored before is intact; …")
def _(place: Any) -> None:
    with Run.open(place.run("old"), write=True) as run:
        run._db.execute("PRAGMA query_only=ON")
        run.record_fact("a", 1)


@says("The results can't be written to …: …; give another output_path.")
def _(place: Any) -> list[str]:
    place.file("file")
    return ["eval", "output_path=file/out"]


@says("There is no results.json in …: the evaluation has not ended; give its command again.")
def _(place: Any) -> list[str]:
    place.results("a")
    place.run("b")
    return ["eval", "compare", "a", "b"]


@says("… can't be read as results of an evaluation: …")
def _(place: Any) -> list[str]:
    place.file("a.json", "{")
    return ["eval", "compare", "a.json", "a.json"]


@says("… does not hold the results of an evaluation of this termrl.")
def _(place: Any) -> list[str]:
    place.file("a.json", "{}")
    return ["eval", "compare", "a.json", "a.json"]


@says("… their tasks are not the same, byte for byte; …")
def _(place: Any) -> list[str]:
    place.results("a")
    place.results("b", digest="other")
    return ["eval", "compare", "a", "b"]


@says("… have no scored task in common: there is nothing to pair.")
def _(place: Any) -> list[str]:
    place.results("a")
    place.results("b", task="other")
    return ["eval", "compare", "a", "b"]


@says("The picture can't be written to …")
def _(place: Any) -> list[str]:
    place.file("file")
    place.results("a")
    place.results("b")
    return ["eval", "compare", "a", "b", "picture=file/x.png"]


@says("… has no scored rollout: say tasks= and rate= instead.")
def _(place: Any) -> list[str]:
    place.results("a", passed=None)
    return ["eval", "power", "a", "difference=5"]


@says("… was left empty: … does not work without it.")
def _(place: Any) -> list[str]:
    place.monkeypatch.setattr("sys.stdin", StringIO("\n"))
    return ["setup", "openai"]


@says("… could not be written: …")
def _(place: Any) -> list[str]:
    place.monkeypatch.setattr("sys.stdin", StringIO("key\n"))
    place.monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    place.file("file")
    return ["setup", "openai", "file=file/x"]


@says("there is no sandbox of type '…'; there are …")
def _(place: Any) -> None:
    from termrl.rollout.runner import RolloutRunner
    from termrl.rollout.settings import RolloutSettings

    settings = RolloutSettings("m", place.path, 1, 1, 100, environment="nothing")
    RolloutRunner(settings, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("message", PRODUCERS)
def test_the_message_is_one_that_the_program_prints(message: str, prints: Prints) -> None:
    prints(message, PRODUCERS[message])
