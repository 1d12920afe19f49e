import json

from hypothesis import given
from hypothesis import strategies as st

from termrl.agents.parsing import ForgivingParser
from termrl.agents.stock import ParsedCommand


def stock_parser() -> object:
    from harbor.agents.terminus_2.terminus_json_plain_parser import TerminusJSONPlainParser

    return TerminusJSONPlainParser()


PARSER = ForgivingParser(stock_parser())


@given(
    analysis=st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    keystrokes=st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    duration=st.floats(0, 60),
)
def test_a_proper_answer_is_parsed_as_stock_parses_it(
    analysis: str, keystrokes: str, duration: float
) -> None:
    commands = [{"keystrokes": keystrokes, "duration": duration}]
    text = json.dumps({"analysis": analysis, "plan": "", "commands": commands})
    assert PARSER.parse_response(text) == stock_parser().parse_response(text)  # type: ignore[attr-defined]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {"analysis": JSON, "plan": JSON},
    optional={
        "commands": st.lists(
            st.fixed_dictionaries({}, optional={"keystrokes": JSON, "duration": JSON}) | JSON
        )
        | JSON,
        "task_complete": JSON,
    },
)


@given(answer=FIELDS.map(json.dumps) | st.text())
def test_whatever_is_written_parsing_gives_an_answer_that_can_be_typed(answer: str) -> None:
    result = PARSER.parse_response(answer)
    for command in result.commands:
        assert "\0" not in command.keystrokes
        command.keystrokes.encode("utf-8")


def test_keystrokes_lose_what_no_terminal_can_take() -> None:
    answer = r'{"analysis": "", "plan": "", "commands": [{"keystrokes": "a\u0000b\ud800c", "duration": 1}]}'
    assert PARSER.parse_response(answer).commands == [ParsedCommand("abc", 1.0)]


def test_a_number_that_is_too_large_is_an_error_the_model_is_told_of() -> None:
    digits = "1" + "0" * 400
    answer = f'{{"analysis": "", "plan": "", "commands": [{{"keystrokes": "", "duration": {digits}}}]}}'
    assert "OverflowError" in PARSER.parse_response(answer).error
