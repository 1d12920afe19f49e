"""Prompts that extend what was sampled, token by token, for as long as history says what was said.

The harness speaks in messages. When its history is exactly the messages of the stream so far, the next
prompt is that stream plus a bridge, and no sampled token is ever tokenised again. When history differs
(the harness unwound or rewrote it, or asks about something else), the prompt is rendered anew.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from termrl.policy.rendering import Renderer

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Stream:
    """The last exchange that extended this line of messages."""

    messages: tuple[Message, ...]
    prompt: tuple[int, ...]
    sampled: tuple[int, ...]


class Conversation:
    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._stream: _Stream | None = None

    def prompt_ids(self, history: Sequence[Message], prompt: str) -> tuple[int, ...]:
        """The tokens that ask for an answer to `prompt` after `history`."""
        question: Message = {"role": "user", "content": _encodable(prompt)}
        stream = self._stream
        if stream is not None and _same_messages(history, stream.messages):
            bridged = self._renderer.bridge_to_next_turn(
                list(stream.prompt), list(stream.sampled), [question]
            )
            if bridged is not None:
                return tuple(bridged.token_ids)
        return tuple(self._renderer.render_ids([*_clean(history), question], add_generation_prompt=True))

    def count_tokens(self, history: Sequence[Message]) -> int:
        """How many tokens these messages take, without tokenising a history that is the stream's."""
        if not history:
            return 0
        stream = self._stream
        if stream is not None and _same_messages(history, stream.messages):
            return len(stream.prompt) + len(stream.sampled)
        return len(self._renderer.render_ids(_clean(history)))

    def answered(
        self,
        history: Sequence[Message],
        prompt: str,
        prompt_ids: tuple[int, ...],
        sampled: tuple[int, ...],
        answer: str,
    ) -> None:
        """Records an exchange; `answer` is the text the harness will keep as the assistant's message."""
        said: tuple[Message, ...] = (
            *history,
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": answer},
        )
        self._stream = _Stream(said, prompt_ids, sampled)


def _same_messages(history: Sequence[Message], said: Sequence[Message]) -> bool:
    return len(history) == len(said) and all(
        one["role"] == other["role"] and one["content"] == other["content"]
        for one, other in zip(history, said, strict=True)
    )


def _clean(history: Sequence[Message]) -> list[Message]:
    return [{**message, "content": _encodable(message["content"])} for message in history]


def _encodable(text: str) -> str:
    """A lone surrogate, which JSON can smuggle in, is not text to any tokenizer."""
    return text.encode("utf-8", "replace").decode("utf-8")
