"""The syntax of a Dockerfile: instructions, words, variables."""

import re

import pytest
from dockerfile_parse import DockerfileParser
from hypothesis import given, settings
from hypothesis import strategies as st

from termrl.sandbox.dockerfile import expand, parse, split_words
from termrl.sandbox.dockerignore import Ignored, _expression
from termrl.sandbox.errors import UnsupportedEnvironment


def texts(text: str) -> list[tuple[int, str, str]]:
    return [(each.line, each.name, each.text) for each in parse(text)]


def test_comments_and_continuations_are_joined_as_docker_joins_them() -> None:
    text = "# a comment\nFROM x\nrun echo one && \\\n  # inside\n\n  echo two\n\n# last\nENV A=1 \\\n"
    assert texts(text) == [(2, "FROM", "x"), (3, "RUN", "echo one &&   echo two"), (9, "ENV", "A=1")]


def test_the_escape_directive_is_honoured_only_at_the_top() -> None:
    assert texts("# escape=`\nFROM x\nRUN a `\n b\\\n") == [(2, "FROM", "x"), (3, "RUN", "a  b\\")]
    assert texts("FROM x\n# escape=`\nRUN a `\nRUN b\n")[1:] == [(3, "RUN", "a `"), (4, "RUN", "b")]


def test_flags_are_taken_off_the_front() -> None:
    (copy,) = parse("COPY --from=build --chown=a:b /x /y\n")
    assert copy.flags == (("from", "build"), ("chown", "a:b"))
    assert copy.text == "/x /y"


def test_heredocs_are_read_to_their_end() -> None:
    run, copy, last = parse(
        "RUN <<EOF\necho a\n# kept\nEOF\nCOPY <<-'ONE' <<TWO /to/\n\tlit $A\nONE\nx\nTWO\nUSER a\n"
    )
    assert run.heredocs[0].content == "echo a\n# kept\n"
    assert [(doc.name, doc.content, doc.literal) for doc in copy.heredocs] == [
        ("ONE", "lit $A\n", True),
        ("TWO", "x\n", False),
    ]
    assert (last.name, last.line) == ("USER", 10)
    with pytest.raises(UnsupportedEnvironment, match="line 1: the heredoc EOF is not closed"):
        list(parse("RUN <<EOF\necho\n"))


def test_words_keep_their_quotes_and_variables_are_filled_as_a_shell_does() -> None:
    assert split_words("a 'b c' d\\ e \"f g\"h") == ["a", "'b c'", "d\\ e", '"f g"h']
    values = {"A": "one", "EMPTY": ""}
    cases = {
        "$A/${A}x": "one/onex",
        "${B:-two}": "two",
        "${EMPTY:-two}": "two",
        "${EMPTY-two}": "",
        "${A:+yes}${B:+no}": "yes",
        "'$A'": "$A",
        '"$A b"': "one b",
        "\\$A": "$A",
        "${B:-${A}}": "one",
        "$": "$",
        "$B": "",
    }
    assert {word: expand(word, values, "here") for word in cases} == cases
    with pytest.raises(UnsupportedEnvironment, match="here: B has no value: needed"):
        expand("${B:?needed}", values, "here")
    with pytest.raises(UnsupportedEnvironment, match="does not read"):
        expand("${A#o}", values, "here")


_LINES = st.sampled_from(
    [
        *("FROM ubuntu:24.04 AS x", "RUN a && \\", "   b", "# comment", "ENV A=1 B='2 3'", "COPY a b /c/"),
        *("WORKDIR /x", "  USER nobody  ", 'CMD ["a", "b"]', "RUN apt-get update \\", "  && true"),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_LINES, min_size=1, max_size=8))
def test_a_well_known_parser_finds_the_same_instructions(tmp_path_factory, lines: list[str]) -> None:
    text = "\n".join(["FROM first", *lines, "RUN last", ""])
    known = DockerfileParser(path=str(tmp_path_factory.mktemp("d")))
    known.content = text

    def normal(value: str) -> str:
        return re.sub(r"\s+", " ", value).strip()

    expected = [
        (part["startline"] + 1, part["instruction"], normal(part["value"]))
        for part in known.structure
        if part["instruction"] != "COMMENT"
    ]
    assert [(line, name, normal(value)) for line, name, value in texts(text)] == expected


def test_a_dockerignore_leaves_out_what_it_says() -> None:
    patterns = [
        ("*.log", True),
        ("**/secret", True),
        ("build", True),
        ("!build/keep.txt", False),
        ("a/?.c", True),
    ]
    ignored = Ignored(
        tuple((re.compile(_expression(text.removeprefix("!"))), ignores) for text, ignores in patterns)
    )
    left_out = ["x.log", "secret", "deep/er/secret", "build/x", "build/deep/x", "a/b.c", "deep/secret/inside"]
    kept = ["sub/x.log", "build/keep.txt", "a/bb.c", "secrets"]
    assert [name for name in left_out + kept if name in ignored] == left_out
