"""The command as a person types it: in a process of its own, by what it prints and how it exits."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from termrl.cli import COMMANDS
from termrl.settings import all_settings


def termrl(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "termrl", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_help_lists_every_command() -> None:
    done = termrl("--help")
    assert done.returncode == 0
    for name, (_, text) in COMMANDS.items():
        assert name in done.stdout
        assert text in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    done = termrl(*name.split(), "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"usage: termrl {name}")


def test_the_help_of_train_has_every_setting_with_its_default_and_description() -> None:
    text = termrl("train", "--help").stdout
    for setting in all_settings().values():
        (line,) = (line for line in text.splitlines() if line.startswith(f"  {setting.name}="))
        assert f"{setting.name}={setting.shown_default}" in line
        assert setting.doc in line
        assert all(alias in line for alias in setting.aliases)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trian"], "error: There is no command `termrl trian`: did you mean `termrl train`?\n"),
        (
            ["tasks", "lst"],
            "error: There is no command `termrl tasks lst`: did you mean `termrl tasks list`?\n",
        ),
        (["runs"], "did you mean `termrl runs list` or `termrl runs show`?\n"),
        (["train", "group_sise=4"], "error: There is no setting 'group_sise': did you mean group_size?\n"),
        (["train", "group_size=x"], "error: group_size is 'x', which is not a whole number.\n"),
        (["train", "group_size=1"], "group_size is 1"),
        (
            ["tasks", "list", "--jsno"],
            "error: '--jsno' is not something this command takes: did you mean json?\n",
        ),
        (["tasks", "list", "./nowhere"], "error: There is no dataset './nowhere'"),
        (["runs", "show"], "error: Name the run to show"),
        (["runs", "show", "last"], "error: There are no runs under"),
        (["engine", "serve", "port=http"], "error: port is 'http', which is not a whole number.\n"),
        (["engine", "serve", "--port"], "error: --port needs a value.\n"),
    ],
)
def test_bad_input_gives_one_sentence_and_exit_code_2(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    done = termrl(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_train_shows_life_before_anything_heavy_loads(tmp_path: Path) -> None:
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "termrl", "train", "group_size=x"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"termrl ")
    assert time.monotonic() - began < 2
    process.communicate()


def test_the_command_itself_imports_nothing_heavy() -> None:
    heavy = ("jax", "harbor", "tinker", "rich", "chz", "numpy")
    code = f"import sys, termrl.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_keys_are_read_from_dotenv_and_never_override_the_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TERMRL_TEST_KEY=from-file\n")
    code = (
        "import os, sys, termrl.cli as cli; cli.main(['runs', 'list']); print(os.environ['TERMRL_TEST_KEY'])"
    )

    def key(**environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        return done.stdout.splitlines()[-1]

    assert key() == "from-file"
    assert key(TERMRL_TEST_KEY="from-environment") == "from-environment"


def test_tasks_list_prints_a_row_for_every_task_and_the_same_as_json() -> None:
    listed = json.loads(termrl("tasks", "list", "termrl/basics:held_out", "--json").stdout)
    rows = listed["tasks"]
    text = termrl("tasks", "list", "termrl/basics:held_out").stdout
    assert len(rows) >= 20
    assert f"{len(rows)} tasks in termrl/basics:held_out" in text
    for row in rows:
        assert row["task_name"] in text
        assert row["difficulty"]
        assert row["instruction"]
        assert Path(row["task_dir"]).is_dir()


def test_doctor_names_each_check_and_exits_with_what_it_found(tmp_path: Path) -> None:
    done = termrl("doctor", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    names = {check["name"] for check in report["checks"]}
    assert {"Python", "disk", "tmux", "user namespaces", "engine model"} <= names
    assert report["ok"] == all(check["ok"] for check in report["checks"] if check["required"])
    assert done.returncode == (0 if report["ok"] else 1)


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m termrl tasks list termrl/basics | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"task +difficulty", done.stdout)
