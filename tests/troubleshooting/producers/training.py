"""Messages of docs/troubleshooting.md: training."""

import asyncio
import shutil
import sys
from types import SimpleNamespace
from typing import Any, cast

import tinker

from producers import Place, said_by, says
from termrl.api.parts import context_limit
from termrl.config import TrainConfig
from termrl.engine.catalog import resolve_model
from termrl.learn.learner import Learner
from termrl.learn.meter import Meter
from termrl.learn.prices import Prices, read_prices
from termrl.learn.progress import Silent
from termrl.learn.rehearsal import rehearse
from termrl.learn.stop import Stop
from termrl.learn.train import train_run
from termrl.learn.training import Training
from termrl.learn.warmup import make_demonstrations
from termrl.observe.metrics import MetricsFile
from termrl.policy.rendering import make_renderer
from termrl.policy.tokenizer import load_tokenizer
from termrl.rollout.outcome import Outcome
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout, Timings
from termrl.settings import to_dict
from termrl.store import Checkpoint, Run
from termrl.tasks import load_harbor_tasks
from termrl.tasks.solution import reference_commands
from termrl.tasks.task import load_harbor_task

said_by(
    "loss_fn is '…', but …: it takes a module that Python can import, and a name in it.",
    *("train", "loss_fn=nowhere:loss"),
)
said_by(
    "Every task is held out, so there is none to train on: hold out fewer.",
    *("train", "n_tasks=1", "eval_fraction=0.5"),
)
said_by(
    "… tasks are both trained on and held out (…): …",
    *("train", "dataset=termrl/basics:train", "eval_dataset=termrl/basics:train"),
)


@says("max_cost is set, but …: add it to a file and name it by prices=.")
def _(place: Place) -> None:
    read_prices(TrainConfig(max_cost=1.0, environment_type="modal"))


@says("The prices in … are not TOML: …")
def _(place: Place) -> list[str]:
    return ["train", f"prices={place.file('prices.toml', '[models')}"]


@says("…: the sandbox '…' needs a price per hour of 0 or more, not …")
def _(place: Place) -> list[str]:
    text = "[sandboxes]\nmodal = 'dear'\n"
    return ["train", f"prices={place.file('prices.toml', text)}"]


@says("The run was started with …, not …: leave … out to go on with it, or give another run_name.")
def _(place: Place) -> list[str]:
    place.run("old", **to_dict(TrainConfig()))
    return ["train", "run_name=old", "group_size=5"]


@says("eval_tasks_file is '…', which names no task: one name a line.")
def _(place: Place) -> list[str]:
    return ["train", f"eval_tasks_file={place.file('none.txt', '# nothing')}"]


@says("The task … has no reference solution at …; …")
def _(place: Place) -> None:
    task = place.task()
    shutil.rmtree(task / "solution")
    reference_commands(load_harbor_task(task))


@says("The reference solution of the task …, …, has no command.")
def _(place: Place) -> None:
    task = place.task()
    (task / "solution" / "solve.sh").write_text("#!/bin/bash\n# nothing\n")
    reference_commands(load_harbor_task(task))


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
def _(place: Place) -> None:
    tokenizer = load_tokenizer(resolve_model("termrl/tiny"))
    renderer = make_renderer(tokenizer, "termrl/tiny")
    tasks = load_harbor_tasks("termrl/basics:train")[:1]
    asyncio.run(rehearse(tasks, pool(Outcome.SANDBOX_LOST, None), tokenizer, renderer, Silent()))


@says("None of the … demonstrations was rewarded by its task's tests: check the tasks' solutions.")
def _(place: Place) -> None:
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
def _(place: Place) -> None:
    stop = Stop()
    with Run.open(place.run("old"), write=True) as run:
        Meter(run, TrainConfig(max_hours=1e-9), Prices(), pool(Outcome.FAILED, 0.0), stop).check()
    assert stop.reason is not None
    raise stop.reason


@says("The server does not say how long …'s context is: …")
def _(place: Place) -> None:
    async def nothing() -> object:
        return SimpleNamespace(supported_models=[])

    client = SimpleNamespace(get_server_capabilities_async=nothing)
    asyncio.run(context_limit(TrainConfig(), cast(tinker.ServiceClient, client)))


said_by(
    "group_size is …: rollouts are compared within their group, "
    "so it takes 2 or more (or advantage=reinforce, …",
    *("train", "group_size=1"),
)
said_by(
    "min_group_size is … and group_size …: no group could ever be used; lower min_group_size.",
    *("train", "group_size=4", "min_group_size=5"),
)
said_by(
    "num_substeps is … but a step has only … rollouts to share among them: lower it.",
    *("train", "group_size=2", "batch_size=2", "num_substeps=5"),
)
said_by(
    "stream_groups trains whole groups, and batch_size=… of them do not share evenly among num_substeps=…: …",
    *("train", "stream_groups=true", "batch_size=3", "num_substeps=2"),
)
said_by(
    "normalize_advantages_by_std has no meaning with advantage=…: "
    "it goes with centred and rloo; leave it out.",
    *("train", "normalize_advantages_by_std=true", "advantage=reinforce"),
)
said_by(
    "partial_rollouts is on but max_steps_off_policy is 0: …",
    *("train", "partial_rollouts=true", "max_steps_off_policy=0"),
)
said_by(
    "stale_rollouts=… has no meaning with max_steps_off_policy=0, where none is stale.",
    *("train", "stale_rollouts=wait", "max_steps_off_policy=0"),
)
said_by(
    "kl_reference and kl_discount_factor do nothing while kl_penalty_coef is 0: set it.",
    *("train", "kl_discount_factor=0.5"),
)
said_by(
    "eval_fraction and eval_tasks_file are two ways to hold out tasks: give one of them.",
    *("train", "eval_fraction=0.5", "eval_tasks_file=held-out.txt"),
)
said_by("eval_every is set but eval_dataset is none: …", "train", "eval_every=1", "eval_dataset=none")
said_by("eval_tasks_file is '…', which could not be read: …", "train", "eval_tasks_file=nowhere.txt")
said_by("No task is left by …; the tasks have …", "train", "task_tags=nothing")
said_by(
    "warmup.families names …, but the training tasks have only the families …",
    *("train", "warmup.enabled=true", "warmup.families=nothing"),
)
said_by(
    "The loss … does not take loss_fn_config.… (…); it takes …",
    *("train", "loss_fn=ppo", "loss_fn_config.beta=1"),
)
said_by(
    "loss_fn_config is set, but … is a function of your own and is not given it: leave loss_fn_config out.",
    *("train", "loss_fn=json:dumps", "loss_fn_config.beta=1"),
)
said_by("loss_fn is '…', which is no function but …", "train", "loss_fn=json:__name__")
said_by("The prices in … could not be read: …", "train", "prices=nowhere.toml")


@says("…: the model '…' needs …, each a price of 0 or more.")
def _(place: Place) -> list[str]:
    text = "[models]\nmine = { prefill = 1 }\n"
    return ["train", f"prices={place.file('prices.toml', text)}"]


@says("The run … is there already: give another run_name, or go on with it (behavior_if_run_exists=resume).")
def _(place: Place) -> list[str]:
    place.run("old", **to_dict(TrainConfig()))
    return ["train", "run_name=old", "behavior_if_run_exists=error"]


@says("The run … is there already and there is no terminal to ask at: …")
def _(place: Place) -> list[str]:
    place.run("old", **to_dict(TrainConfig()))
    return ["train", "run_name=old", "behavior_if_run_exists=ask"]


@says(
    "The metrics could not be written to … (…); the run itself is intact: "
    "make room and run the same command again."
)
def _(place: Place) -> None:
    MetricsFile(place.file("file") / "metrics.jsonl")


@says("W&B was asked for, but its client is not installed: `pip install 'termrl[wandb]'` brings it.")
def _(place: Place) -> list[str]:
    place.monkeypatch.setitem(sys.modules, "wandb", None)
    return ["train", "wandb.project=mine"]


@says("W&B was asked for, but there is no …: put it into .env, or set WANDB_MODE=offline.")
def _(place: Place) -> list[str]:
    place.monkeypatch.setenv("HOME", str(place.path))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "NETRC"):
        place.monkeypatch.delenv(name, raising=False)
    return ["train", "wandb.project=mine"]


@says("The server does not train with loss_fn=… …: …")
def _(place: Place) -> None:
    thresholds = {"clip_low_threshold": 3.0, "clip_high_threshold": 1.0}
    config = TrainConfig(loss_fn="ppo", loss_fn_config=thresholds, lora_rank=1)

    async def ask() -> None:
        with place.tinker() as service, Run.open(place.run("old"), write=True) as run:
            meter = Meter(run, config, Prices(), pool(Outcome.FAILED, 0.0), Stop())
            await (await Learner.fresh(service, config, meter)).require_loss()

    asyncio.run(ask())


@says("The server has none of the checkpoints of … any more, so it cannot go on: …")
def _(place: Place) -> None:
    config = TrainConfig()

    async def go_on() -> None:
        with place.tinker() as service, Run.open(place.run("old"), write=True) as run:
            run.record_checkpoint(
                Checkpoint("1", 1, "tinker://gone/weights/1", "tinker://gone/sampler_weights/1")
            )
            stop, losing = Stop(), pool(Outcome.FAILED, 0.0)
            meter = Meter(run, config, Prices(), losing, stop)
            training = SimpleNamespace(
                service=service,
                run=run,
                config=config,
                meter=meter,
                pool=losing,
                progress=Silent(),
                stop=stop,
            )
            await train_run(cast(Training, training))

    asyncio.run(go_on())


@says("context_limit is …, but the server gives … … tokens: lower it, or leave it out.")
def _(place: Place) -> None:
    with place.tinker() as service:
        asyncio.run(context_limit(TrainConfig(context_limit=10**6), service))
