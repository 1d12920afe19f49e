"""Asking the policy within one conversation: render, sample, record, parse.

Every harness asks through here (Harbor's model object, the bash agent, the gateway for black-box agents),
so that what is recorded is the same whoever asked. An answer is clamped to the room that the context has
left; where there is none `ContextExhausted` is raised and nothing is sampled. An answer that was cut short
is recorded like any other.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from termrl.errors import UserError
from termrl.policy.budget import ContextBudget
from termrl.policy.conversation import Conversation, Message, Prompt, Tools
from termrl.policy.rendering import ParsedAnswer, Renderer
from termrl.policy.sampler import SampledAnswer, Sampler, turn_seed
from termrl.policy.transcript import Turn
from termrl.policy.usage import Usage

EMPTY_ANSWERS = 3
"""So many answers without a single token, one after another, are no model's doing."""


class ContextExhausted(Exception):
    """The prompt leaves no room for an answer."""


class EmptyAnswersError(UserError):
    """The model service answers, but with nothing."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy said, as its family's format has it; `cut` when it ran out of tokens."""

    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    malformed_calls: tuple[str, ...]
    """Attempts to call a tool that can't be read, as they were written."""
    cut: bool
    answer_tokens: int
    """How many tokens it was allowed to have."""
    turn: Turn
    message: Message
    """What belongs into the history for the next prompt to extend this answer."""


class Policy:
    """One rollout's view of the policy: a sampler, a budget, and what was said so far."""

    def __init__(self, sampler: Sampler, renderer: Renderer, budget: ContextBudget, seed: int) -> None:
        self._sampler = sampler
        self._renderer = renderer
        self._seed = seed
        self._empty = 0
        self.budget = budget
        self.conversation = Conversation(renderer)
        self.unanswered_seconds = 0.0
        """How long a call had waited when it was given up or failed."""
        self.failure: Exception | None = None
        """What the sampler raised, if it did: harnesses keep only the text of an exception."""

    @property
    def turns(self) -> list[Turn]:
        return self.conversation.transcript.turns

    @property
    def usage(self) -> Usage | None:
        """What was asked of the model, where the turns do not say it themselves."""
        return None

    async def ask(
        self, messages: Sequence[Message], *, tools: Tools | None = None, max_tokens: int | None = None
    ) -> Answer:
        prompt = self.conversation.prompt(messages, tools)
        allowed = self.budget.answer_tokens(prompt.length)
        if allowed is None:
            raise ContextExhausted(
                f"a prompt of {prompt.length} tokens leaves no room for an answer "
                f"in a context of {self.budget.context_limit}"
            )
        allowed = min(allowed, max_tokens or allowed)
        answer = await self._sample(prompt, allowed)
        parsed = self.conversation.parse(prompt, answer.tokens, tools)
        calls, malformed = _calls(parsed, len(self.turns))
        message = _message(parsed.content, parsed.reasoning_content, calls)
        turn = self.conversation.answered(prompt, answer, message, self._sampler.policy_version)
        self._expect_something(answer)
        return Answer(
            parsed.content,
            parsed.reasoning_content,
            *(calls, malformed, answer.stop_reason == "length", allowed, turn, message),
        )

    async def _sample(self, prompt: Prompt, allowed: int) -> SampledAnswer:
        asked = time.monotonic()
        try:
            return await self._sampler.sample(prompt.ids(), allowed, turn_seed(self._seed, len(self.turns)))
        except BaseException as error:
            self.unanswered_seconds = time.monotonic() - asked
            if isinstance(error, Exception):
                self.failure = error
            raise

    def _expect_something(self, answer: SampledAnswer) -> None:
        self._empty = 0 if answer.tokens else self._empty + 1
        if self._empty >= EMPTY_ANSWERS:
            self.failure = EmptyAnswersError(
                f"the model service gave {self._empty} answers in a row without a single token: its key may "
                "lack access to this model, or its provider may be failing; ask it once by hand and look."
            )
            raise self.failure


def _calls(parsed: ParsedAnswer, turn: int) -> tuple[tuple[ToolCall, ...], tuple[str, ...]]:
    """The calls that can be made, and the others."""
    calls, malformed = [], []
    for index, call in enumerate(getattr(parsed, "tool_calls", ())):
        if call.status == "ok" and call.name and isinstance(call.arguments, dict):
            calls.append(ToolCall(call.id or f"call_{turn}_{index}", call.name, call.arguments))
        else:
            malformed.append(call.raw)
    return tuple(calls), tuple(malformed)


def _message(content: str, reasoning: str | None, calls: Sequence[ToolCall]) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return message
