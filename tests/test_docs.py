"""Every command in the docs is one that there is, with settings that it takes and that go together."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from termrl.cli import COMMANDS, _command
from termrl.config import EvalConfig, TrainConfig
from termrl.settings import build, read_arguments

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IN_A_BLOCK = re.compile(r"^termrl .*$", re.MULTILINE)
IN_A_LINE = re.compile(r"`(termrl [^`\n]*)`")
WITH_SETTINGS = {"train": TrainConfig, "eval": EvalConfig}


def commands(page: Path) -> list[str]:
    """What is written as a command: lines of code blocks, and code within a line; comments left out."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"```[^\n]*\n(.*?)```", text, flags=re.DOTALL)
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = [line for block in blocks for line in IN_A_BLOCK.findall(block)] + IN_A_LINE.findall(outside)
    return [re.split(r"\s+#|\s{3,}", command)[0].strip() for command in found]


def words_of(command: str) -> list[str]:
    return [word for word in shlex.split(command.replace("[", " ").replace("]", " "))[1:] if word != "|"]


def is_whole(command: str) -> bool:
    """Whether it names one command, and not several at once or what stands for one."""
    words = words_of(command)
    return bool(words) and "…" not in command and " | " not in command and not words[0].isupper()


ALL = sorted({(page.name, command) for page in PAGES for command in commands(page) if is_whole(command)})


def test_the_pages_have_the_commands_of_the_clouds() -> None:
    for backend in ("docker", "modal", "daytona"):
        assert any(
            f"snapshot create terminal-bench@2.0 environment_type={backend}" in each for _, each in ALL
        )


@pytest.mark.parametrize(("page", "command"), ALL)
def test_a_command_in_the_docs_is_one_that_can_be_given(page: str, command: str) -> None:
    words = words_of(command)
    if words[0].startswith("-"):
        assert words[0] in ("--help", "--version")
        return
    name, rest = _command(words)
    given = [word for word in rest if "=" in word or word.startswith("--")]
    if "--help" in given:
        assert importlib.import_module(COMMANDS[name][0]).help_text()
    elif name in WITH_SETTINGS:
        # A value that is left open says that there is a setting, not which value it has.
        said = [word for word in given if not word.endswith(("=", "=...")) and word != "dry_run"]
        settings = read_arguments([re.sub(r"\|.*", "", word) for word in said], WITH_SETTINGS[name])
        assert build(settings, WITH_SETTINGS[name]) is not None
    else:
        text = importlib.import_module(COMMANDS[name][0]).help_text()
        for word in given:
            assert word.removeprefix("--").partition("=")[0] in text, f"{page}: {command}: {word}"
