"""A place in which something goes wrong, and what the program says, held against docs/troubleshooting.md."""

import json
import re
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from termrl.cli import main
from termrl.config import EvalConfig
from termrl.errors import UserError
from termrl.evaluate.evaluation import DIGESTS
from termrl.evaluate.going_on import evaluation_name
from termrl.settings import to_dict
from termrl.store import Checkpoint, Run
from termrl.tasks import load_harbor_tasks


class Place:
    """An empty working directory in which a producer makes what it needs to go wrong."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.monkeypatch = monkeypatch

    def file(self, name: str, text: str = "") -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def task(self, name: str = "tasks/one") -> Path:
        source = load_harbor_tasks("termrl/basics:train")[0].task_dir
        return Path(shutil.copytree(source, self.path / name))

    def run(self, name: str, *, checkpoint: str | None = None, **settings: object) -> Path:
        with Run.create(self.path / "runs" / name, kind="train", settings=dict(settings)) as run:
            if checkpoint:
                run.record_checkpoint(Checkpoint("last", 1, "tinker://a/weights/b", checkpoint))
        return self.path / "runs" / name

    def evaluation(self, config: EvalConfig) -> Path:
        """An evaluation that was begun, of a dataset as it is now."""
        path = self.path / "runs" / (config.run_name or evaluation_name(config))
        with Run.create(path, kind="eval", settings=to_dict(config)) as run:
            run.record_fact(DIGESTS, {"gone": "0"})
        return path

    def results(self, name: str, *, task: str = "t", passed: bool | None = True, digest: str = "d") -> None:
        row = {
            "task": task,
            "outcomes": ["sandbox_lost" if passed is None else "solved"],
            "passed": [passed],
        }
        dataset = {"name": "x", "digest": digest}
        self.file(f"{name}/results.json", json.dumps({"schema": 1, "dataset": dataset, "tasks": [row]}))


type Producer = Callable[[Place], list[str] | None]
"""Makes what goes wrong, and gives the command that says so (or raises it itself)."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", StringIO(""))
    for name in ("TINKER_API_KEY", "TINKER_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return Place(tmp_path, monkeypatch)


@pytest.fixture
def prints(place: Place, capsys: pytest.CaptureFixture[str]) -> Callable[[str, Producer], None]:
    """Sees to it that what goes wrong is said in the words that the page has for it."""

    def check(message: str, producer: Producer) -> None:
        try:
            command = producer(place)
        except UserError as error:
            said = str(error)
        else:
            assert command is not None
            code = main(command)
            (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
            assert code in (1, 2)
            said = line.removeprefix("error: ")
        pattern = ".*?".join(map(re.escape, message.split("…")))
        assert re.match(pattern, said), f"the page has {message!r}, the program says {said!r}"

    return check
