"""Models that are asked in text, through litellm: an OpenAI-compatible endpoint, or any provider it knows.

For baselines. Nothing here can be trained on: what comes back are words and numbers of tokens, no ids. The
endpoint's own tokenizer counts, so the room left in a context is what its last answer said, plus an
estimate of what was added since.
"""

import asyncio
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from termrl.policy.asking import (
    EMPTY_ANSWERS,
    Answer,
    ContextExhausted,
    EmptyAnswersError,
    Policy,
    ToolCall,
)
from termrl.policy.budget import ContextBudget
from termrl.policy.conversation import Message, Tools
from termrl.policy.sampler import ModelUnavailableError, SampledAnswer, SamplingRefusedError, turn_seed
from termrl.policy.transcript import Transcript, Turn
from termrl.policy.usage import Usage

TRIES = 4
BACKOFF_SECONDS = 1.0
CHARACTERS_A_TOKEN = 3.5
UNKNOWN_LIMIT = 1_000_000
"""What Harbor takes a context to hold where nobody says."""


class OutsideSampler(ABC):
    """A model that gives no tokens: each attempt asks it through a policy of its own."""

    policy_version = 0

    def for_attempt(self) -> "OutsideSampler":
        return self

    @abstractmethod
    def policy(self, budget: ContextBudget, seed: int) -> Policy: ...

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        raise SamplingRefusedError("a model that is asked in text has no tokens to sample")


class NoModel(OutsideSampler):
    """For agents that ask nobody: the oracle, and the one that does nothing."""

    def policy(self, budget: ContextBudget, seed: int) -> Policy:
        return _Unasked(budget)


class ChatSampler(OutsideSampler):
    def __init__(self, model_name: str, *, base_url: str | None, temperature: float) -> None:
        self.model_name = model_name
        self.base_url = base_url
        self.temperature = temperature

    def policy(self, budget: ContextBudget, seed: int) -> Policy:
        return ChatPolicy(self, budget, seed)

    def context_limit(self) -> int:
        """What litellm knows of the model's context."""
        import litellm

        try:
            info: dict[str, Any] = dict(litellm.get_model_info(self.model_name))
        except Exception:
            # litellm's word for a model that is not in its list, which an endpoint of one's own never is.
            return UNKNOWN_LIMIT
        return int(info.get("max_input_tokens") or info.get("max_tokens") or UNKNOWN_LIMIT)

    async def complete(self, messages: Sequence[Message], tools: Tools | None, limit: int, seed: int) -> Any:
        """litellm's response; tried again where the service could not answer."""
        import litellm

        options: dict[str, Any] = {}
        if tools:
            # Else litellm imports a package of its proxy's, which is not installed, to look at the tools.
            options["_skip_mcp_handler"] = True
            options["tools"] = [
                dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}
                for tool in tools
            ]
        if "seed" in (litellm.get_supported_openai_params(self.model_name) or ()):
            options["seed"] = seed
        if self.base_url is not None:
            options["api_base"] = self.base_url
            # Endpoints of one's own mostly ask for no key, but the client insists on one.
            options["api_key"] = os.environ.get("OPENAI_API_KEY") or "none"
        for attempt in range(TRIES):
            try:
                return await litellm.acompletion(
                    model=self.model_name,
                    messages=[_sendable(message) for message in messages],
                    temperature=self.temperature,
                    max_tokens=limit,
                    num_retries=0,
                    **options,
                )
            except Exception as error:
                failure = classify(error)
                if not isinstance(failure, ModelUnavailableError) or attempt == TRIES - 1:
                    raise failure from error
            await asyncio.sleep(BACKOFF_SECONDS * 2**attempt)
        raise AssertionError("unreachable")


def classify(error: Exception) -> Exception:
    """Whose fault a failed call is. What can't be told apart counts as the service's."""
    from litellm import exceptions

    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    text = str(error).lower()
    if isinstance(error, exceptions.ContextWindowExceededError) or (
        isinstance(error, exceptions.BadRequestError) and "context length" in text
    ):
        return ContextExhausted(first_line)
    refusals = (
        exceptions.AuthenticationError,
        exceptions.PermissionDeniedError,
        exceptions.NotFoundError,
        exceptions.BadRequestError,
        exceptions.UnsupportedParamsError,
    )
    if isinstance(error, refusals):
        return SamplingRefusedError(f"the model service refused to answer: {first_line}")
    return ModelUnavailableError(f"the model service gave no answer ({type(error).__name__}): {first_line}")


class _Counting:
    """What stands where a conversation of tokens would: turns without ids, and an estimate of lengths."""

    def __init__(self) -> None:
        self.transcript = Transcript()

    def count_tokens(self, messages: Sequence[Message]) -> int:
        return _estimate(messages)


class ChatPolicy(Policy):
    """One rollout's view of a model that is asked in text."""

    def __init__(self, sampler: ChatSampler, budget: ContextBudget, seed: int) -> None:
        self._chat = sampler
        self._seed = seed
        self._empty = 0
        self.budget = budget
        self.conversation: Any = _Counting()
        self.unanswered_seconds = 0.0
        self.failure: Exception | None = None
        self._known = (0, 0)
        self._prompt_tokens = self._sampled_tokens = 0
        self._cost: float | None = None

    @property
    def usage(self) -> Usage:
        return Usage(len(self.turns), self._prompt_tokens, self._sampled_tokens, self._cost)

    async def ask(
        self, messages: Sequence[Message], *, tools: Tools | None = None, max_tokens: int | None = None
    ) -> Answer:
        allowed = self.budget.answer_tokens(self._length(messages))
        if allowed is None:
            raise ContextExhausted(
                f"about {self._length(messages)} tokens leave no room for an answer "
                f"in a context of {self.budget.context_limit}"
            )
        allowed = min(allowed, max_tokens or allowed)
        asked = time.monotonic()
        try:
            response = await self._chat.complete(
                messages, tools, allowed, turn_seed(self._seed, len(self.turns))
            )
        except BaseException as error:
            self.unanswered_seconds = time.monotonic() - asked
            if isinstance(error, Exception) and not isinstance(error, ContextExhausted):
                self.failure = error
            raise
        return self._take(response, messages, allowed, time.monotonic() - asked)

    def _take(self, response: Any, messages: Sequence[Message], allowed: int, seconds: float) -> Answer:
        choice = response.choices[0]
        content = choice.message.content or ""
        prompt = int(getattr(response.usage, "prompt_tokens", 0) or 0)
        sampled = int(getattr(response.usage, "completion_tokens", 0) or 0)
        self._prompt_tokens += prompt
        self._sampled_tokens += sampled
        self._known = (len(messages), prompt + sampled)
        cost = (getattr(response, "_hidden_params", None) or {}).get("response_cost")
        if cost is not None:
            self._cost = (self._cost or 0.0) + float(cost)
        stop = "length" if choice.finish_reason == "length" else "stop"
        self.turns.append(Turn((), (), (), 0, stop, seconds))
        self._expect_words(content, choice.message.tool_calls)
        calls, malformed = _calls(choice.message.tool_calls or ())
        return Answer(
            content=content,
            reasoning=getattr(choice.message, "reasoning_content", None),
            tool_calls=calls,
            malformed_calls=malformed,
            cut=stop == "length",
            answer_tokens=allowed,
            # How many tokens there were is known, which they were is not.
            turn=Turn((0,) * prompt, (0,) * sampled, (0.0,) * sampled, 0, stop, seconds),
            message=_message(content, calls),
        )

    def _expect_words(self, content: str, calls: object) -> None:
        self._empty = 0 if content or calls else self._empty + 1
        if self._empty >= EMPTY_ANSWERS:
            self.failure = EmptyAnswersError(
                f"the model service gave {self._empty} answers in a row without a single token: its key may "
                "lack access to this model, or its provider may be failing; ask it once by hand and look."
            )
            raise self.failure

    def _length(self, messages: Sequence[Message]) -> int:
        """The tokens of a prompt: what the last answer said, and an estimate of what came after it."""
        seen, tokens = self._known
        if not 0 < seen <= len(messages):
            return _estimate(messages)
        return tokens + _estimate(messages[seen + 1 :])


class _Unasked(Policy):
    def __init__(self, budget: ContextBudget) -> None:
        self.budget = budget
        self.conversation: Any = _Counting()
        self.unanswered_seconds = 0.0
        self.failure: Exception | None = None

    async def ask(
        self, messages: Sequence[Message], *, tools: Tools | None = None, max_tokens: int | None = None
    ) -> Answer:
        raise SamplingRefusedError("this agent was to ask no model, and asked one")


def _calls(made: Sequence[Any]) -> tuple[tuple[ToolCall, ...], tuple[str, ...]]:
    """The calls that can be made, and the others."""
    calls, malformed = [], []
    for call in made:
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except ValueError:
            arguments = None
        if isinstance(arguments, dict) and call.function.name:
            calls.append(ToolCall(call.id, call.function.name, arguments))
        else:
            malformed.append(str(call.function.arguments))
    return tuple(calls), tuple(malformed)


def _message(content: str, calls: Sequence[ToolCall]) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return message


def _sendable(message: Message) -> dict[str, Any]:
    """A message as endpoints take it: arguments of calls as text, no thoughts."""
    sent = {name: value for name, value in message.items() if name != "reasoning_content"}
    if sent.get("tool_calls"):
        sent["tool_calls"] = [
            {
                **call,
                "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
            }
            for call in sent["tool_calls"]
        ]
    return sent


def _estimate(messages: Sequence[Message]) -> int:
    return round(sum(len(str(message.get("content", ""))) for message in messages) / CHARACTERS_A_TOKEN)
