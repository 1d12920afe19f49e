"""`terminus-tinker`: a checkpoint under the older Terminal-Bench command line, which installs beside termrl.

    pip install terminal-bench
    tb run --dataset terminal-bench-core==0.1.1 \\
        --agent-import-path termrl.agents.terminus_tinker:TerminusTinker \\
        --agent-kwarg model_name=MODEL --agent-kwarg checkpoint_path=tinker://RUN/sampler_weights/NAME

Terminal-Bench's own Terminus 2, asked through termrl: the service is `base_url` or TINKER_BASE_URL with
TINKER_API_KEY, or the embedded engine with `run_path=` for a run's weights. A model call is a turn of
`max_episodes`; a context that is full ends the agent, and what was done by then is tested.
"""

import asyncio
import threading
from contextlib import AsyncExitStack
from dataclasses import fields
from typing import Any

from terminal_bench.agents.base_agent import AgentResult
from terminal_bench.agents.failure_mode import FailureMode
from terminal_bench.agents.terminus_2.terminus_2 import Terminus2
from terminal_bench.llms.base_llm import BaseLLM, ContextLengthExceededError, OutputLengthExceededError
from terminal_bench.llms.chat import Chat

from termrl.agents.served import Served, served_policy
from termrl.errors import UserError
from termrl.policy.asking import ContextExhausted, Policy
from termrl.policy.transcript import Turn

_OURS = {field.name for field in fields(Served)} - {"model_name", "checkpoint_path"}
_STOCK = {"max_episodes", "parser_name", "version", "no_rebuild"}
_SMALL_CONTEXT = 16_000
"""Stock summarizes whenever fewer than 8,000 tokens are free: in less than twice that, always."""


class UnknownAgentKwarg(UserError):
    """Terminal-Bench hands everything on, and stock ignores what it does not know."""


class TurnLimitReached(Exception):
    """The policy has been asked as often as it may be."""


class TinkerLLM(BaseLLM):  # type: ignore[misc]
    """Terminal-Bench asks and waits; the policy lives on a loop of its own."""

    def __init__(self, served: Served) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open = AsyncExitStack()
        self._policy: Policy = self._wait(self._open.enter_async_context(served_policy(served)))

    def call(self, prompt: str, message_history: list[dict[str, Any]] | None = None, **kwargs: Any) -> str:
        messages = [*(message_history or []), {"role": "user", "content": prompt}]
        try:
            answer = self._wait(self._policy.ask(messages))
        except ContextExhausted as error:
            raise ContextLengthExceededError(str(error)) from error
        if answer.cut:
            raise OutputLengthExceededError("the answer was cut", truncated_response=answer.content)
        return str(answer.content)

    def count_tokens(self, messages: list[dict[str, Any]]) -> int:
        return self._policy.conversation.count_tokens(messages)

    @property
    def context_limit(self) -> int:
        return self._policy.budget.context_limit

    @property
    def turns(self) -> list[Turn]:
        return self._policy.turns

    def close(self) -> None:
        self._wait(self._open.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class TerminusTinker(Terminus2):  # type: ignore[misc]
    def __init__(self, model_name: str, checkpoint_path: str | None = None, **kwargs: Any) -> None:
        unknown = sorted(set(kwargs) - _OURS - _STOCK)
        if unknown:
            known = ", ".join(sorted({"model_name", "checkpoint_path", *_OURS, *_STOCK} - {"no_rebuild"}))
            raise UnknownAgentKwarg(f"terminus-tinker has no --agent-kwarg {unknown[0]}: it has {known}.")
        served = {name: kwargs.pop(name) for name in _OURS & set(kwargs)}
        super().__init__(model_name=f"openai/{model_name}", **kwargs)
        self._served = Served(model_name, checkpoint_path, **served)

    @staticmethod
    def name() -> str:
        return "terminus-tinker"

    def perform_task(self, *args: Any, **kwargs: Any) -> AgentResult:
        self._llm = TinkerLLM(self._served)
        try:
            ended = self._perform(*args, **kwargs)
            turns = self._llm.turns
            return AgentResult(
                total_input_tokens=sum(turn.prompt_length for turn in turns),
                total_output_tokens=sum(turn.sampled_count for turn in turns),
                failure_mode=ended,
                timestamped_markers=self._timestamped_markers,
            )
        finally:
            self._llm.close()

    def _perform(self, *args: Any, **kwargs: Any) -> FailureMode:
        try:
            super().perform_task(*args, **kwargs)
        except ContextLengthExceededError:
            return FailureMode.CONTEXT_LENGTH_EXCEEDED
        except OutputLengthExceededError:
            return FailureMode.OUTPUT_LENGTH_EXCEEDED
        except TurnLimitReached:
            pass
        return FailureMode.NONE

    def _query_llm(self, *args: Any, **kwargs: Any) -> str:
        # Stock asks three times, and three times more at every level of truncated answers above it; the SDK
        # has already tried again by then.
        if len(self._llm.turns) >= self._max_episodes:
            raise TurnLimitReached
        return str(Terminus2._query_llm.__wrapped__(self, *args, **kwargs))

    def _check_proactive_summarization(self, chat: Chat, *args: Any) -> str | None:
        # With nothing said yet stock would replace the first prompt, template and all, by the instruction.
        if not chat._messages or self._llm.context_limit < _SMALL_CONTEXT:
            return None
        summary: str | None = super()._check_proactive_summarization(chat, *args)
        return summary

    def _unwind_messages_to_free_tokens(self, chat: Chat, target_free_tokens: int = 4000) -> None:
        super()._unwind_messages_to_free_tokens(chat, min(target_free_tokens, self._llm.context_limit // 4))

    def _get_model_context_limit(self) -> int:
        return int(self._llm.context_limit)

    def _count_total_tokens(self, chat: Chat) -> int:
        return int(self._llm.count_tokens(chat._messages))
