"""Terminus-2's own parser, which here never raises, whatever the model wrote.

Numbers too large for a float, nesting too deep for the stack and the like end a stock trial with an
error of the harness; they are unparsable answers, and the model is told so. Lone surrogates and NULs,
which JSON can spell and neither a terminal nor a file can take, are dropped from what was parsed.
"""

from dataclasses import replace
from typing import Any

from termrl.agents.stock import ParsedCommand, ParseResult


class ForgivingParser:
    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def parse_response(self, response: str) -> ParseResult:
        try:
            result: ParseResult = self._parser.parse_response(response)
        except (ValueError, OverflowError, RecursionError) as error:
            return ParseResult([], False, f"Invalid JSON: {type(error).__name__}: {error}", "")
        return replace(
            result,
            commands=[ParsedCommand(_typable(each.keystrokes), each.duration) for each in result.commands],
            error=_typable(result.error),
            warning=_typable(result.warning),
            analysis=_typable(result.analysis),
            plan=_typable(result.plan),
        )


def _typable(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return value.replace("\0", "").encode("utf-8", "ignore").decode("utf-8")
