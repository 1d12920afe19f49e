"""Prompts that extend what was sampled, token by token, for as long as history says what was said.

A harness speaks in messages. Where its messages begin with those of an exchange that was had before, the
next prompt is that exchange's stream plus a bridge, and no sampled token is ever tokenised again. Where
they differ (the harness rewrote history, or asks about something else) the prompt is rendered anew, and a
new segment begins. Work and memory per call grow with what is new, not with what was said before.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from termrl.policy.rendering import ParsedAnswer, Renderer
from termrl.policy.sampler import SampledAnswer
from termrl.policy.transcript import Transcript, Turn

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens that ask for an answer: the stream that `after` ended, then `observed`."""

    messages: tuple[Message, ...]
    observed: tuple[int, ...]
    after: "_Exchange | None" = None

    @property
    def length(self) -> int:
        return len(self.observed) + (self.after.turn.end if self.after else 0)

    def ids(self) -> list[int]:
        return [*(self.after.turn.tokens if self.after else ()), *self.observed]


@dataclass(frozen=True, slots=True, eq=False)
class _Exchange:
    """A question and its answer, after those that came before it in the same line of messages."""

    before: "_Exchange | None"
    messages: tuple[Message, ...]
    """What was said since `before`, the answer last."""
    depth: int
    turn: Turn


class Conversation:
    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._exchanges: list[_Exchange] = []
        self.transcript = Transcript()

    def prompt(self, messages: Sequence[Message], tools: Tools | None = None) -> Prompt:
        """The tokens that ask for an answer to `messages`, of which the last is not the assistant's."""
        found = self._exchange_before(messages)
        if found is not None:
            observed = self._bridge(found, messages[found.depth :], tools)
            if observed is not None:
                return Prompt(tuple(messages[found.depth :]), observed, found)
        ids = self._render(messages, tools, add_generation_prompt=True)
        return Prompt(tuple(messages), tuple(ids))

    def answered(self, prompt: Prompt, answer: SampledAnswer, said: Message, policy_version: int) -> Turn:
        """Records an exchange; `said` is what the harness will keep as the assistant's message."""
        before = prompt.after
        turn = self.transcript.add(
            prompt.observed,
            answer.tokens,
            answer.logprobs,
            policy_version=policy_version,
            stop_reason=answer.stop_reason,
            seconds=answer.seconds,
            after=before.turn if before else None,
        )
        depth = (before.depth if before else 0) + len(prompt.messages) + 1
        self._exchanges.append(_Exchange(before, (*prompt.messages, said), depth, turn))
        return turn

    def parse(self, prompt: Prompt, tokens: Sequence[int], tools: Tools | None = None) -> ParsedAnswer:
        return self._renderer.parse_response(list(tokens), prompt_ids=list(prompt.observed), **_given(tools))

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens these messages take, without tokenising what is in a stream already."""
        if not messages:
            return 0
        found = self._exchange_before(messages)
        if found is not None and found.depth == len(messages):
            return found.turn.end
        return len(self._render(messages, None, add_generation_prompt=False))

    def _exchange_before(self, messages: Sequence[Message]) -> _Exchange | None:
        """The longest exchange that these messages begin with, if all that follows it is new to the model."""
        for exchange in reversed(self._exchanges):
            if exchange.depth <= len(messages) and _begins_with(messages, exchange):
                new = messages[exchange.depth :]
                return None if any(message["role"] == "assistant" for message in new) else exchange
        return None

    def _bridge(
        self, exchange: _Exchange, new: Sequence[Message], tools: Tools | None
    ) -> tuple[int, ...] | None:
        turn = exchange.turn
        # The last turn's part of the stream is all that a bridge looks at; handing it the whole stream
        # every time would make a conversation's cost grow with its square.
        prompt, sampled = list(turn.observed), list(turn.sampled)
        bridged = self._renderer.bridge_to_next_turn(
            prompt, sampled, [_clean(each) for each in new], **_given(tools)
        )
        if bridged is None:
            return None
        ids, known = list(bridged.token_ids), [*prompt, *sampled]
        return tuple(ids[len(known) :]) if ids[: len(known)] == known else None

    def _render(
        self, messages: Sequence[Message], tools: Tools | None, *, add_generation_prompt: bool
    ) -> list[int]:
        cleaned = [_clean(message) for message in messages]
        return self._renderer.render_ids(
            cleaned, add_generation_prompt=add_generation_prompt, **_given(tools)
        )


def _begins_with(messages: Sequence[Message], exchange: _Exchange) -> bool:
    at: _Exchange | None = exchange
    while at is not None:
        start = at.depth - len(at.messages)
        for index in range(at.depth - 1, start - 1, -1):
            if not _same(messages[index], at.messages[index - start]):
                return False
        at = at.before
    return True


def _same(one: Message, other: Message) -> bool:
    return (
        one["role"] == other["role"]
        and (one.get("content") or "") == (other.get("content") or "")
        and _calls(one) == _calls(other)
    )


def _calls(message: Message) -> list[tuple[Any, Any]]:
    called = [call["function"] for call in message.get("tool_calls") or ()]
    return [(function["name"], _arguments(function["arguments"])) for function in called]


def _arguments(arguments: Any) -> Any:
    """Over the wire they are JSON in a string."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _clean(message: Message) -> Message:
    """A lone surrogate, which JSON can smuggle in, is not text to any tokenizer."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    encodable = content.encode("utf-8", "replace").decode("utf-8")
    return message if encodable == content else {**message, "content": encodable}


def _given(tools: Tools | None) -> dict[str, Any]:
    return {} if tools is None else {"tools": list(tools)}
