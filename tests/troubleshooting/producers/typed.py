"""Messages of docs/troubleshooting.md: what is typed, settings, set-up."""

from io import StringIO

from producers import Place, said_by, says
from termrl.config import TrainConfig
from termrl.rollout.outcome import Outcome
from termrl.rollout.record import Rollout, Timings
from termrl.settings import to_dict
from termrl.store import Place as StoredPlace
from termrl.store import Run

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
said_by("There is no service '…'; there are …", "setup", "nothing")
said_by("The input ended before every key was given.", "setup", "openai")
said_by("--… needs a value.", "tasks", "check", "--attempts")
said_by("… is '…': it is one of …", "tasks", "list", "termrl/basics", "on_bad_task=x")
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
said_by("Say which dataset to …: termrl tasks … DATASET.", "tasks", "remove")


@says("The settings file … is not TOML: …")
def _(place: Place) -> list[str]:
    return ["eval", f"config={place.file('settings.toml', 'attempts = ')}"]


@says("… was left empty: … does not work without it.")
def _(place: Place) -> list[str]:
    place.monkeypatch.setattr("sys.stdin", StringIO("\n"))
    return ["setup", "openai"]


@says("… could not be written: …")
def _(place: Place) -> list[str]:
    place.monkeypatch.setattr("sys.stdin", StringIO("key\n"))
    place.monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    place.file("file")
    return ["setup", "openai", "file=file/x"]


@says("'…' is not a rollout: it is named STAGE/STEP/GROUP/MEMBER, such as train/0/0/0.")
def _(place: Place) -> list[str]:
    place.run("old", **to_dict(TrainConfig()))
    return ["replay", "old", "nothing"]


@says("The run … has no rollout …: `termrl replay …` lists them all.")
def _(place: Place) -> list[str]:
    place.run("old", **to_dict(TrainConfig()))
    return ["replay", "old", "train/0/0/0"]


@says("The run … is not a check of … in …: give another run_name.")
def _(place: Place) -> list[str]:
    place.run("old")
    return ["tasks", "check", "termrl/basics:train", "n_tasks=1", "run_name=old"]


@says("… is not a termrl store: …")
def _(place: Place) -> list[str]:
    place.file("runs/old/run.sqlite", "not a database at all, but long enough to look like one" * 9)
    return ["runs", "show", "runs/old"]


said_by("… must be 1 or more.", "tasks", "check", "termrl/basics:train", "n_tasks=0")
said_by("Say what the task is called: termrl tasks new NAME.", "tasks", "new")
said_by(
    "task_indices is '…': write numbers and ranges, such as 0,3,5-8.",
    *("snapshot", "create", "termrl/basics:train", "task_indices=x"),
)
said_by(
    "task_indices has …, and … has … tasks, from 0 on.",
    *("snapshot", "create", "termrl/basics:train", "task_indices=9999"),
)
said_by("`termrl snapshot create` takes a DATASET: …", "snapshot", "create")


@says("The task … is not in the run's datasets any more.")
def _(place: Place) -> list[str]:
    with Run.open(place.run("old", **to_dict(TrainConfig())), write=True) as run:
        gone = Rollout("gone", Outcome.FAILED, 0.0, (), Timings())
        run.add_rollout(StoredPlace("train", 0, 0, 0), gone)
    return ["replay", "old", "train/0/0/0"]
