"""The policy as Harbor's model object.

Tokens and logprobs stay with the policy's own transcript, and none of them enter Harbor's objects, which
would copy them once a turn. A truncated answer is a turn like any other; the agent is told of it the way
Harbor tells it, and goes on.
"""

from typing import Any

from harbor.llms.base import BaseLLM, ContextLengthExceededError, LLMResponse, OutputLengthExceededError
from harbor.models.metric import UsageInfo

from termrl.policy.asking import ContextExhausted, Policy
from termrl.policy.conversation import Message


class PolicyModel(BaseLLM):
    def __init__(self, policy: Policy) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.policy = policy
        self.was_exhausted = False
        """Whether the last call found no room for an answer."""

    async def call(
        self, prompt: str, message_history: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> LLMResponse:
        messages: list[Message] = [*(message_history or []), {"role": "user", "content": prompt}]
        try:
            answer = await self.policy.ask(messages)
        except ContextExhausted as error:
            self.was_exhausted = True
            raise ContextLengthExceededError(str(error)) from error
        self.was_exhausted = False
        if answer.cut:
            raise OutputLengthExceededError(
                f"the answer was cut at {answer.answer_tokens} tokens", truncated_response=answer.content
            )
        return LLMResponse(
            content=answer.content,
            reasoning_content=answer.reasoning,
            usage=UsageInfo(
                prompt_tokens=answer.turn.prompt_length,
                completion_tokens=answer.turn.sampled_count,
                cache_tokens=0,
                cost_usd=0.0,
            ),
        )

    def count_tokens(self, messages: list[dict[str, Any]]) -> int:
        return self.policy.conversation.count_tokens(messages)

    def get_model_context_limit(self) -> int:
        return self.policy.budget.context_limit

    def get_model_output_limit(self) -> int | None:
        return self.policy.budget.max_tokens
