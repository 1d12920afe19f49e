"""Messages of docs/troubleshooting.md from the rooms: training, tasks, sandboxes, agents, models."""

import asyncio
import shutil
import socket
import subprocess
import urllib.error
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import tinker
from harbor.environments.base import BaseEnvironment
from harbor.models.task.id import PackageTaskId
from harbor.tasks.client import TaskClient

from termrl.agents.gateway import Gateway
from termrl.api.parts import context_limit
from termrl.config import TrainConfig
from termrl.engine import process
from termrl.engine.catalog import resolve_model
from termrl.learn.meter import Meter
from termrl.learn.prices import Prices, read_prices
from termrl.learn.progress import Silent
from termrl.learn.rehearsal import rehearse
from termrl.learn.stop import Stop
from termrl.learn.training import Training
from termrl.learn.warmup import make_demonstrations
from termrl.policy.budget import ContextBudget
from termrl.policy.chat import NoModel
from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.rendering import make_renderer
from termrl.policy.sampler import TinkerSampler, classify_failure
from termrl.policy.tokenizer import Tokenizer, load_tokenizer
from termrl.rollout.outcome import Outcome
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout, Timings
from termrl.sandbox.backends import Backend
from termrl.sandbox.dockerfile import parse
from termrl.sandbox.factory import environment_arguments, factory_named
from termrl.sandbox.images import ImageStore
from termrl.sandbox.layers import LayerStore
from termrl.sandbox.local import LocalEnvironment
from termrl.sandbox.reading import read_dockerfile
from termrl.sandbox.snapshotters import EngineSnapshots
from termrl.settings import to_dict
from termrl.store import Run
from termrl.tasks import load_harbor_tasks
from termrl.tasks.faults import explained
from termrl.tasks.fetching import _download_packages
from termrl.tasks.quarantine import read_quarantine
from termrl.tasks.records import DatasetRecord, FetchedTask, harbor_cache, write_record
from termrl.tasks.scaffold import write_new_task
from termrl.tasks.solution import reference_commands
from termrl.tasks.task import load_harbor_task
from termrl.tasks.terminal_bench_1 import converted
from termrl.tasks.writing import written_directory

type Producer = Callable[[Any], list[str] | None]
type Prints = Callable[[str, Producer], None]
PRODUCERS: dict[str, Producer] = {}


def says(message: str) -> Callable[[Producer], Producer]:
    def keep(producer: Producer) -> Producer:
        PRODUCERS[message] = producer
        return producer

    return keep


def said_by(message: str, *command: str) -> None:
    PRODUCERS[message] = lambda place: list(command)


said_by("agent is '…', but the module … has no …", "eval", "agent=json:Nothing")
said_by("--… needs a value.", "tasks", "check", "--attempts")
said_by("… is '…': it is one of …", "tasks", "list", "termrl/basics", "on_bad_task=x")
said_by("dtype must be float32 or bfloat16, not …", "engine", "serve", "dtype=x")
said_by("`termrl images import` takes a NAME and a PATH (or docker:REF).", "images", "import")
said_by("`termrl images remove` takes the NAME of an image.", "images", "remove")
said_by("Name the run: `termrl replay last`, or one of `termrl runs list`.", "replay")
said_by("Name the run to show: `termrl runs show last`, or one of `termrl runs list`.", "runs", "show")
said_by(
    "ttl_hours is '…': it must be a number above 0.", "snapshot", "create", "termrl/basics", "ttl_hours=x"
)
said_by("Say which: a key (or how it begins), a task's name, or `all`.", "snapshot", "destroy")
said_by(
    "… has no task …: `termrl tasks list …` lists them.",
    "tasks",
    "check",
    "termrl/basics",
    "task_ids=nothing",
)
said_by("… is built in: there is nothing to fetch.", "tasks", "pull", "termrl/basics")
said_by("… is built in and cannot be removed.", "tasks", "remove", "termrl/basics")
said_by("Say which dataset to …: termrl tasks … DATASET.", "tasks", "remove")
said_by(
    "gateway_url is set but gateway_port is not: say which port on this machine it leads to.",
    *("train", "gateway_url=http://x"),
)
said_by(
    "gateway_url is '…': it must begin with http:// or https://.",
    *("train", "gateway_url=x", "gateway_port=1"),
)
said_by(
    "loss_fn is '…', but …: it takes a module that Python can import, and a name in it.",
    *("train", "loss_fn=nowhere:loss"),
)


@says("max_cost is set, but …: add it to a file and name it by prices=.")
def _(place: Any) -> None:
    read_prices(TrainConfig(max_cost=1.0, environment_type="modal"))


said_by("there is no renderer '…'; there are auto, …", "eval", "renderer=nothing")
said_by(
    "Every task is held out, so there is none to train on: hold out fewer.",
    *("train", "n_tasks=1", "eval_fraction=0.5"),
)


said_by(
    "… tasks are both trained on and held out (…): …",
    *("train", "dataset=termrl/basics:train", "eval_dataset=termrl/basics:train"),
)


@says("'…' is not a rollout: it is named STAGE/STEP/GROUP/MEMBER, such as train/0/0/0.")
def _(place: Any) -> list[str]:
    place.run("old", **to_dict(TrainConfig()))
    return ["replay", "old", "nothing"]


@says("The run … has no rollout …: `termrl replay …` lists them all.")
def _(place: Any) -> list[str]:
    place.run("old", **to_dict(TrainConfig()))
    return ["replay", "old", "train/0/0/0"]


@says("The run … is not a check of … in …: give another run_name.")
def _(place: Any) -> list[str]:
    place.run("old")
    return ["tasks", "check", "termrl/basics:train", "n_tasks=1", "run_name=old"]


@says("The prices in … are not TOML: …")
def _(place: Any) -> list[str]:
    return ["train", f"prices={place.file('prices.toml', '[models')}"]


@says("…: the sandbox '…' needs a price per hour of 0 or more, not …")
def _(place: Any) -> list[str]:
    text = "[sandboxes]\nmodal = 'dear'\n"
    return ["train", f"prices={place.file('prices.toml', text)}"]


@says("The run was started with …, not …: leave … out to go on with it, or give another run_name.")
def _(place: Any) -> list[str]:
    place.run("old", **to_dict(TrainConfig()))
    return ["train", "run_name=old", "group_size=5"]


@says("eval_tasks_file is '…', which names no task: one name a line.")
def _(place: Any) -> list[str]:
    return ["train", f"eval_tasks_file={place.file('none.txt', '# nothing')}"]


@says("… tasks cannot be split with holdout=…: one side would have none.")
def _(place: Any) -> list[str]:
    place.task()
    return ["tasks", "split", "tasks"]


@says("The lists cannot be written to …: …")
def _(place: Any) -> list[str]:
    place.file("file")
    return ["tasks", "split", "termrl/basics:train", "output_path=file/out"]


@says("… is there already: choose another name.")
def _(place: Any) -> list[str]:
    place.file("one/x")
    return ["tasks", "new", "one"]


@says("… names no task.")
def _(place: Any) -> list[str]:
    return ["tasks", "list", str(place.file("list.txt", "# nothing\n"))]


@says("… is too big for a list of tasks.")
def _(place: Any) -> list[str]:
    with place.file("list.txt").open("wb") as file:
        file.truncate(2**31)
    return ["tasks", "list", "list.txt"]


@says("… cannot be read: …")
def _(place: Any) -> None:
    read_quarantine(place.path / "nothing.json")


@says("… has no task.toml, so it is not a Harbor task.")
def _(place: Any) -> None:
    load_harbor_task(place.path)


@says("The task … has no …; add one that tells the agent what to do.")
def _(place: Any) -> list[str]:
    (place.task() / "instruction.md").unlink()
    return ["eval", "dataset=tasks"]


@says("The task … has no reference solution at …; …")
def _(place: Any) -> None:
    task = place.task()
    shutil.rmtree(task / "solution")
    reference_commands(load_harbor_task(task))


@says("The reference solution of the task …, …, has no command.")
def _(place: Any) -> None:
    task = place.task()
    (task / "solution" / "solve.sh").write_text("#!/bin/bash\n# nothing\n")
    reference_commands(load_harbor_task(task))


@says("The task cannot be written to …: …")
def _(place: Any) -> None:
    write_new_task("one", place.file("file") / "tasks")


@says("The Terminal-Bench 1 task … has its tests read by …, which is not known here; only pytest is.")
def _(place: Any) -> list[str]:
    for name, text in (("task.yaml", "parser_name: swebench\n"), ("run-tests.sh", "")):
        place.file(f"tasks/old/{name}", text)
    place.file("tasks/old/docker-compose.yaml", "services: {}\n")
    return ["tasks", "list", "tasks"]


@says("… is not a termrl store: …")
def _(place: Any) -> list[str]:
    place.file("runs/old/run.sqlite", "not a database at all, but long enough to look like one" * 9)
    return ["runs", "show", "runs/old"]


def dockerfile(place: Any, *lines: str) -> None:
    text = "\n".join(("FROM termrl/host", *lines, ""))
    read_dockerfile(place.file("Dockerfile", text), ImageStore(place.path).find)


DOCKERFILES = {
    "…: ENV needs a name and a value: write ENV NAME=value.": "ENV",
    "…: ENV … has no value: write ENV …=value.": "ENV A",
    "…: RUN says nothing to run.": "RUN",
    "…: WORKDIR names no directory.": "WORKDIR",
    "…: USER names no user.": "USER",
    '…: SHELL is written as a list: SHELL ["/bin/bash", "-c"].': "SHELL bash",
    "…: … needs a source and a target.": "COPY a",
    "…: … … names nothing in …: add it or drop the line.": "COPY a /a",
    "…: --chmod=… is not an octal mode: …": "COPY --chmod=rwx Dockerfile /a",
    "…: … is not a variable: write $NAME or ${NAME}.": "WORKDIR ${",
}


def _in_a_dockerfile(line: str) -> Producer:
    return lambda place: dockerfile(place, line)


PRODUCERS |= {message: _in_a_dockerfile(line) for message, line in DOCKERFILES.items()}


@says("…: escape=… is neither \\ nor `.")
def _(place: Any) -> None:
    list(parse("# escape=x\nFROM a\n"))


@says("… is not a sandbox factory: it can't be called.")
def _(place: Any) -> None:
    factory_named("termrl:__version__")


@says("… is built in: give the image another name.")
def _(place: Any) -> list[str]:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    return ["images", "import", "termrl/host", "."]


@says("… is not a tar file: …")
def _(place: Any) -> list[str]:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    return ["images", "import", "mine", str(place.file("root.tar", "no"))]


@says("The gateway can't listen on port …: …; set another gateway_port.")
def _(place: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        asyncio.run(Gateway(port=taken.getsockname()[1]).start())


@says("a model that is asked in text has no tokens to sample")
def _(place: Any) -> None:
    asyncio.run(NoModel().sample([1], 1, 0))


@says("this agent was to ask no model, and asked one")
def _(place: Any) -> None:
    asyncio.run(NoModel().policy(ContextBudget(10, 10), 0).ask([]))


class WithoutLogprobs:
    """A service's client whose answer lacks what training needs."""

    async def sample_async(self, **_: object) -> object:
        return SimpleNamespace(sequences=[SimpleNamespace(tokens=[1, 2], logprobs=None, stop_reason="stop")])


@says("the model service returned an answer without a logprob for each of its tokens; …")
def _(place: Any) -> None:
    client = cast(tinker.SamplingClient, WithoutLogprobs())
    asyncio.run(TinkerSampler(client, policy_version=0, stop=[]).sample([1], 1, 0))


@says("the model service refused to sample: …")
def _(place: Any) -> None:
    response = httpx.Response(400, request=httpx.Request("POST", "http://127.0.0.1"))
    raise classify_failure(tinker.BadRequestError("no", response=response, body=None))


class Losing:
    """A pool whose every rollout ends this way."""

    in_flight = 0
    sandbox_seconds = 0.0

    def __init__(self, outcome: Outcome, reward: float | None) -> None:
        self._outcome = outcome
        self._reward = reward

    async def run(self, task: Any, sampler: object, *, seed: int) -> Rollout:
        return Rollout(task.task_name, self._outcome, self._reward, (), Timings())


def pool(outcome: Outcome, reward: float | None) -> RolloutPool:
    return cast(RolloutPool, Losing(outcome, reward))


@says("… of … scripted rollouts ended as …, one at … (…): `termrl doctor` says more about this machine.")
def _(place: Any) -> None:
    tokenizer = load_tokenizer(resolve_model("termrl/tiny"))
    renderer = make_renderer(tokenizer, "termrl/tiny")
    tasks = load_harbor_tasks("termrl/basics:train")[:1]
    asyncio.run(rehearse(tasks, pool(Outcome.SANDBOX_LOST, None), tokenizer, renderer, Silent()))


@says("None of the … demonstrations was rewarded by its task's tests: check the tasks' solutions.")
def _(place: Any) -> None:
    tokenizer = load_tokenizer(resolve_model("termrl/tiny"))
    with Run.open(place.run("old"), write=True) as run:
        training = SimpleNamespace(
            run=run,
            config=TrainConfig(),
            pool=pool(Outcome.FAILED, 0.0),
            progress=Silent(),
            tasks=load_harbor_tasks("termrl/basics:train")[:1],
            tokenizer=tokenizer,
            renderer=make_renderer(tokenizer, "termrl/tiny"),
        )
        asyncio.run(make_demonstrations(cast(Training, training)))


@says("…: the run stopped, with everything stored. …")
def _(place: Any) -> None:
    stop = Stop()
    with Run.open(place.run("old"), write=True) as run:
        Meter(run, TrainConfig(max_hours=1e-9), Prices(), pool(Outcome.FAILED, 0.0), stop).check()
    assert stop.reason is not None
    raise stop.reason


@says("renderer=… can't be used with the tokenizer of …: …")
def _(place: Any) -> None:
    make_renderer(load_tokenizer(resolve_model("termrl/tiny")), "termrl/tiny", name="gpt-oss")


@says("the tokenizer at … has no … token, which ChatML needs")
def _(place: Any) -> None:
    bare = SimpleNamespace(name_or_path="here", unk_token_id=0, convert_tokens_to_ids=lambda token: None)
    ChatMLRenderer(cast(Tokenizer, bare))


async def _start_engine(place: Any, model: str) -> None:
    async with process.start_engine(place.path / "engine", models=(model,), log_path=place.path / "log"):
        pass


@says("The engine did not start (exit code …): …")
def _(place: Any) -> None:
    asyncio.run(_start_engine(place, "./nowhere"))


@says("The engine did not answer within … seconds; its log is …")
def _(place: Any) -> None:
    place.monkeypatch.setattr(process, "START_SECONDS", 0.01)
    asyncio.run(_start_engine(place, "termrl/tiny"))


@says("The model … is no local path and could not be fetched from the Hugging Face hub: …")
def _(place: Any) -> None:
    place.monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    resolve_model("nobody/nothing")


FETCHES: dict[str, Exception] = {
    "git could not fetch … from …: …": subprocess.CalledProcessError(1, "git", stderr=b"fatal: odd"),
    "… could not be fetched from …: …": ValueError("odd"),
    "… could not be fetched: …": OSError(28, "No space left on device"),
    "… has a task with a link that cannot be followed within it: …": ValueError("Git task a: link"),
    "… has no branch or tag as … asks for; a commit takes all of its 40 digits.": ValueError(
        "Could not resolve ref x"
    ),
    "… comes from a git repository, and there is no git: install it.": FileNotFoundError(2, "no", "git"),
    "… answered … …: check the address.": urllib.error.HTTPError("x", 404, "Not Found", Message(), None),
}


def _fetch_that_fails(error: Exception) -> Producer:
    def fetch(place: Any) -> None:
        with explained("a-dataset", "a-source"):
            raise error

    return fetch


PRODUCERS |= {message: _fetch_that_fails(error) for message, error in FETCHES.items()}


@says("The dataset … has no tasks.")
def _(place: Any) -> list[str]:
    place.monkeypatch.setenv("HOME", str(place.path))
    place.file("registry.json", '[{"name": "a", "version": "1", "description": "", "tasks": []}]')
    return ["tasks", "pull", f"{place.path}/registry.json#a@1"]


@says("… has no tasks in its directory tasks, nor at its top: write …#DIRECTORY to say where they are.")
def _(place: Any) -> list[str]:
    place.monkeypatch.setenv("HOME", str(place.path))
    place.file("someone/tasks.git/readme")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), (*identity, "commit", "-q", "-m", "x")):
        subprocess.run(["git", *words], cwd=place.path / "someone/tasks.git", check=True)
    return ["tasks", "pull", f"file://{place.path}/someone/tasks.git"]


@says("What arrived as …/… is not what its digest says: fetch it again.")
def _(place: Any) -> None:
    place.monkeypatch.setenv("HOME", str(place.path))
    task = PackageTaskId(org="a", name="b", ref="sha256:" + "0" * 64)

    class Damaging:
        async def download_tasks(self, tasks: object, output_dir: Path, **_: object) -> object:
            place.file(str((output_dir / "a/b" / ("0" * 64)).relative_to(place.path)))
            return SimpleNamespace(paths=[output_dir / "a/b" / ("0" * 64)])

    asyncio.run(_download_packages(cast(TaskClient, Damaging()), [task], lambda *_: None))


@says("The server does not say how long …'s context is: …")
def _(place: Any) -> None:
    async def nothing() -> object:
        return SimpleNamespace(supported_models=[])

    client = SimpleNamespace(get_server_capabilities_async=nothing)
    asyncio.run(context_limit(TrainConfig(), cast(tinker.ServiceClient, client)))


@says("What was fetched cannot be recorded in …: …")
def _(place: Any) -> None:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.file("file")))
    write_record(DatasetRecord("a", "b", "c", 0.0, ()))


@says("The built-in tasks cannot be written to …: …")
def _(place: Any) -> None:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.file("file")))
    written_directory("a", {"b": ("text", 0o644)})


@says("The converted task … cannot be written to …: …")
def _(place: Any) -> None:
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.file("file")))
    place.file("old/run-tests.sh")
    converted(place.path / "old")


@says("… cannot be removed: …")
def _(place: Any) -> list[str]:
    place.monkeypatch.setenv("HOME", str(place.path))
    place.monkeypatch.setenv("XDG_CACHE_HOME", str(place.path / "cache"))
    path = harbor_cache() / "hash" / "task"
    path.mkdir(parents=True)
    write_record(DatasetRecord("a@1", "b", "c", 0.0, (FetchedTask(str(path), 0, 0, ""),)))

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    place.monkeypatch.setattr("termrl.tasks.removal.shutil.rmtree", refuse)
    return ["tasks", "remove", "a@1"]


@says("…: there is no task directory …")
def _(place: Any) -> list[str]:
    return ["tasks", "list", str(place.file("list.txt", "nowhere\n"))]


@says("Task … asks for a TPU, and the local sandbox hands out none: …")
def _(place: Any) -> None:
    task = place.task()
    with (task / "task.toml").open("a") as file:
        file.write('[environment.tpu]\ntype = "v5e"\ntopology = "1x1"\n')
    arguments, _ = environment_arguments(task / "environment")
    LocalEnvironment(**arguments)


@says("The sandbox cache … can't be written (…): …")
def _(place: Any) -> None:
    LayerStore(place.file("file") / "layers", 0, True).open()


@says("The container of …")
def _(place: Any) -> None:
    class NoContainer(EngineSnapshots):
        async def _ask(self, *_: str) -> str:
            return ""

    environment = SimpleNamespace(session_id="a", environment_name="b")
    asyncio.run(NoContainer(Backend("docker")).take(cast(BaseEnvironment, environment), "key"))


@says("The sandbox layer … could not be kept in …")
def _(place: Any) -> None:
    place.file("layers/one")
    with LayerStore(place.path / "layers", 0, True).building("one"):
        pass


@says("The local sandbox has no mounts of type … (asked for at …): use type = bind.")
def _(place: Any) -> None:
    arguments, _ = environment_arguments(place.task() / "environment")
    LocalEnvironment(**arguments, mounts=[{"type": "volume", "source": "a", "target": "/a"}])


@pytest.mark.parametrize("message", PRODUCERS)
def test_the_message_is_one_that_the_program_prints(message: str, prints: Prints) -> None:
    prints(message, PRODUCERS[message])
