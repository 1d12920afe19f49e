"""docs/troubleshooting.md has every message of the program; each is made here or named by a room's test."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "termrl"
PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGES = re.findall(r"^### (.+)$", PAGE.read_text(), flags=re.M)

PRINTED_OF_THE_ENGINE = ("catalog.py", "process.py")
"""What else the engine says are its answers to a Tinker client's requests; no command prints them."""
LEAST = 10
"""Characters of a message that a room's test must name."""


def test_every_message_has_what_to_do_and_stands_once() -> None:
    assert len(MESSAGES) == len(set(MESSAGES))
    for entry in re.split(r"^#+ ", PAGE.read_text(), flags=re.M)[1:]:
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


def test_every_message_on_the_page_is_produced_here_or_named_by_a_rooms_test() -> None:
    """A part of its words in a test is no proof that the test produces it: only those made here are sure."""
    produced = {text for path in Path(__file__).parent.glob("test_*.py") for text in strings(path)}
    named = {
        part
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.parent != Path(__file__).parent
        for text in strings(path)
        for part in re.split(r"…|\.\*\??", re.sub(r"\\(.)", r"\1", text))
        if len(part) >= LEAST
    }
    unproduced = [message for message in MESSAGES if message not in produced and not is_named(message, named)]
    assert not unproduced, "\n".join(unproduced)


def is_named(message: str, named: set[str]) -> bool:
    parts = [part for part in message.split("…") if len(part) >= LEAST]
    return any(text in part or part.strip(" :;") in text for part in parts for text in named)


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
        return name == "UserError" or any(map(is_for_a_user, parents.get(name, [])))

    for path, tree in trees.items():
        engine = path.parent.name == "engine" and path.name not in PRINTED_OF_THE_ENGINE
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and (everything or not engine):
                text = words(node.args[0])
                name = ast.unparse(node.func).rpartition(".")[2]
                if text and (everything or is_for_a_user(name)):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", text


def strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        text = words(node)
        if text:
            yield text


def words(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def covers(message: str, text: str) -> bool:
    """Whether one of the two is a case of the other."""
    return any(
        re.match(".*?".join(map(re.escape, general.split("…"))), special) is not None
        for general, special in ((message, text), (text, message))
    )
