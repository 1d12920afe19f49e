"""`terminus-tinker`: a checkpoint under the older Terminal-Bench command line, which installs beside termrl.

    pip install terminal-bench
    tb run --dataset terminal-bench-core==0.1.1 \\
        --agent-import-path termrl.agents.terminus_tinker:TerminusTinker \\
        --agent-kwarg model_name=MODEL --agent-kwarg checkpoint_path=tinker://RUN/sampler_weights/NAME

Terminal-Bench's own Terminus 2, asked through termrl: the service is `base_url` or TINKER_BASE_URL with
TINKER_API_KEY, or the embedded engine with `run_path=` for a run's weights.
"""

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import Any

from terminal_bench.agents.base_agent import AgentResult
from terminal_bench.agents.terminus_2.terminus_2 import Terminus2
from terminal_bench.llms.base_llm import BaseLLM, ContextLengthExceededError, OutputLengthExceededError

from termrl.agents.served import Served, served_policy
from termrl.policy.asking import ContextExhausted, Policy


class TinkerLLM(BaseLLM):  # type: ignore[misc]
    """Terminal-Bench asks and waits; the policy lives on a loop of its own."""

    def __init__(self, served: Served) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
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

    def close(self) -> None:
        self._wait(self._open.aclose())

    def _wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class TerminusTinker(Terminus2):  # type: ignore[misc]
    def __init__(self, model_name: str, checkpoint_path: str | None = None, **kwargs: Any) -> None:
        ours = ("base_url", "run_path", "tokenizer", "renderer", "context_limit", "max_tokens", "seed")
        served = Served(
            model_name, checkpoint_path, **{name: kwargs.pop(name) for name in ours if name in kwargs}
        )
        super().__init__(model_name=f"openai/{model_name}", **kwargs)
        self._served = served

    @staticmethod
    def name() -> str:
        return "terminus-tinker"

    def _get_model_context_limit(self) -> int:
        return self._llm.context_limit

    def perform_task(self, *args: Any, **kwargs: Any) -> AgentResult:
        self._llm = TinkerLLM(self._served)
        try:
            return super().perform_task(*args, **kwargs)
        finally:
            self._llm.close()
