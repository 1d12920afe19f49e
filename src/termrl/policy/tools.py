"""Tool calls for models without a format of their own: Hermes', in plain text.

The tools are described in a system message; a call is JSON between `<tool_call>` and `</tool_call>`, its
result a message of role `tool`. Families that have a format of their own are rendered by `renderers`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_INSTRUCTIONS = """\
You may call tools. These are their descriptions, one JSON object a line:
{tools}
To call one, write its name and arguments as JSON between <tool_call> and </tool_call>:
<tool_call>
{{"name": "tool", "arguments": {{"argument": "value"}}}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One attempt to call a tool; `status` is "ok" when it can be made."""

    raw: str
    name: str | None = None
    arguments: dict[str, Any] | None = None
    status: str = "ok"
    id: str | None = None


def describe_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    return _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool) for tool in tools))


def write_calls(message: Mapping[str, Any]) -> str:
    """An assistant's message as text, with its calls."""
    parts = [str(message.get("content") or "")]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        body = json.dumps({"name": function["name"], "arguments": arguments})
        parts.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(part for part in parts if part)


def read_calls(text: str) -> tuple[str, list[ParsedCall]]:
    """The text without its calls, and the calls."""
    calls = [_read_call(match) for match in _CALL.finditer(text)]
    return (_CALL.sub("", text).rstrip() if calls else text), calls


def _read_call(match: re.Match[str]) -> ParsedCall:
    raw = match[0]
    try:
        call = json.loads(match[1])
        name, arguments = call["name"], call.get("arguments", {})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ParsedCall(raw, status="malformed")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return ParsedCall(raw, status="malformed")
    return ParsedCall(raw, name, arguments)
