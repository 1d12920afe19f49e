"""docs/troubleshooting.md has every message of the program, and the program is made to say each."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import producers
import pytest
from producers import PRODUCERS, Place

from termrl.cli import main
from termrl.errors import UserError

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "termrl"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
MESSAGES = ["".join(found) for found in re.findall(r"^### (.+)$|^\| ([^`|].*?[.…]) \| .+ \|$", PAGE, re.M)]
"""Headings, and the first cells of the tables of sentences."""

MAKERS = ("UserError", "MalformedRequest", "error_response", "_refuse")
"""What makes a sentence for a user: errors, and in the engine its answers to a client (but for 500, which is
a fault of its own)."""

for module in pkgutil.iter_modules(producers.__path__):
    importlib.import_module(f"producers.{module.name}")


@pytest.mark.parametrize("message", MESSAGES)
def test_the_program_says_it(message: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Its cause is made to happen, and what is said compared from the first word to the last."""
    assert message in PRODUCERS, "no producer makes the program say this"
    try:
        produced = PRODUCERS[message](place)
    except UserError as error:
        produced = str(error)
    assert produced is not None, "the producer ran into nothing"
    said = produced if isinstance(produced, str) else said_by_command(produced, capsys)
    assert fits(message, said), f"the page has {message!r}, the program says {said!r}"


def said_by_command(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(command) in (1, 2)
    errors = capsys.readouterr().err
    (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
    return errors[errors.index(line) :].removeprefix("error: ").rstrip("\n")


def test_every_message_has_what_to_do_and_stands_once() -> None:
    assert len(MESSAGES) == len(set(MESSAGES))
    for entry in re.split(r"^#+ ", PAGE, flags=re.M)[1:]:
        heading, _, text = entry.partition("\n")
        if heading in MESSAGES:
            assert text.strip(), heading


def test_the_page_misses_no_message() -> None:
    """Every sentence for a user that the source raises is on the page."""
    missing = [
        f"{place}: {text}" for place, text in raised() if not any(covers(each, text) for each in MESSAGES)
    ]
    assert not missing, "\n".join(missing)


def test_every_message_on_the_page_is_one_that_the_source_has() -> None:
    texts = [text for _, text in raised(everything=True)]
    gone = [message for message in MESSAGES if not any(covers(message, text) for text in texts)]
    assert not gone, "\n".join(gone)


def test_no_producer_is_without_a_message_on_the_page() -> None:
    assert not PRODUCERS.keys() - set(MESSAGES)


def raised(*, everything: bool = False) -> Iterator[tuple[str, str]]:
    """Where the source makes an error for a user, and its words, with what is filled in left out."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    parents = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def is_for_a_user(name: str) -> bool:
        return name in MAKERS or any(map(is_for_a_user, parents.get(name, [])))

    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                name = ast.unparse(node.func).rpartition(".")[2]
                text = words(node.args[0])
                if name == "error_response":
                    text = None if ast.unparse(node.args[0]) == "500" else words(node.args[1])
                if text and (everything or is_for_a_user(name)):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", text


def words(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def covers(message: str, text: str) -> bool:
    """Whether one of the two is a case of the other."""
    return fits(message, text) or fits(text, message)


def fits(message: str, said: str) -> bool:
    """Whether this was said, with anything where the message has …"""
    first, *rest = message.split("…")
    if not rest:
        return said == message
    *middle, last = rest
    place = len(first) if said.startswith(first) else -1
    for part in middle:
        if place >= 0:
            found = said.find(part, place)
            place = found + len(part) if found >= 0 else -1
    return 0 <= place <= len(said) - len(last) and said.endswith(last)
