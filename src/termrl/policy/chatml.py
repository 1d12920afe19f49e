"""Plain ChatML: `<|im_start|>role\\n` + text + `<|im_end|>\\n`, with no think blocks; tools as in `tools`.

The tokenizer needs two special tokens, `<|im_start|>` and `<|im_end|>`; `<|endoftext|>`, if it has one,
ends an answer too. The interface is the part of `renderers`' `Renderer` that this project uses, so that
either can stand behind it. A bridge keeps every sampled token and closes an answer that was cut short.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from termrl.policy.tokenizer import Tokenizer, TokenizerError
from termrl.policy.tools import ParsedCall, describe_tools, read_calls, write_calls

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""What a tokenizer's `chat_template` says when this renderer is the one that fits it."""

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class ChatMLPrompt:
    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class ChatMLAnswer:
    content: str
    reasoning_content: str | None = None
    tool_calls: tuple[ParsedCall, ...] = ()


class ChatMLRenderer:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._start = self._control(TURN_START)
        self._end = self._control(TURN_END)
        end_of_text = tokenizer.convert_tokens_to_ids("<|endoftext|>")
        self._stops = [self._end]
        if isinstance(end_of_text, int) and end_of_text not in (tokenizer.unk_token_id, self._end):
            self._stops.append(end_of_text)
        self._newline = self._encode("\n")
        self._generation = [self._start, *self._encode("assistant\n")]

    def render_ids(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        tokens: list[int] = []
        if tools:
            tokens += self._message({"role": "system", "content": describe_tools(tools)})
        for message in messages:
            tokens += self._message(message)
        return tokens + self._generation if add_generation_prompt else tokens

    def parse_response(
        self,
        token_ids: Sequence[int],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> ChatMLAnswer:
        length = next((i for i, token in enumerate(token_ids) if token in self._stops), len(token_ids))
        text = self._tokenizer.decode(token_ids[:length], skip_special_tokens=False)
        if not tools:
            return ChatMLAnswer(text)
        content, calls = read_calls(text)
        return ChatMLAnswer(content, tool_calls=tuple(calls))

    def get_stop_token_ids(self) -> list[int]:
        return list(self._stops)

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> ChatMLPrompt | None:
        if not previous_prompt_ids or not new_messages:
            return None
        if any(message["role"] == "assistant" for message in new_messages):
            return None
        tokens = [*previous_prompt_ids, *previous_completion_ids]
        if not previous_completion_ids or previous_completion_ids[-1] not in self._stops:
            tokens.append(self._end)
        tokens += self._newline
        for message in new_messages:
            tokens += self._message(message)
        return ChatMLPrompt(tokens + self._generation)

    def _message(self, message: Mapping[str, Any]) -> list[int]:
        body = self._encode(f"{message['role']}\n{write_calls(message)}")
        return [self._start, *body, self._end, *self._newline]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def _control(self, token: str) -> int:
        found = self._tokenizer.convert_tokens_to_ids(token)
        if not isinstance(found, int) or found == self._tokenizer.unk_token_id:
            raise TokenizerError(
                f"the tokenizer at {self._tokenizer.name_or_path} has no {token} token, which ChatML needs"
            )
        return found
