"""The policy as Harbor's model object.

Every call's prompt ids, sampled ids and logprobs are kept here as turns, and none of them enter
Harbor's objects, which would copy them once a turn. A truncated answer is a turn like any other; the
agent is told of it the way Harbor tells it, and goes on.
"""

import time
from typing import Any

from harbor.llms.base import BaseLLM, ContextLengthExceededError, LLMResponse, OutputLengthExceededError
from harbor.models.metric import UsageInfo

from termrl.policy.budget import ContextBudget
from termrl.policy.conversation import Conversation
from termrl.policy.rendering import Renderer
from termrl.policy.sampler import SampledAnswer, Sampler, turn_seed
from termrl.policy.transcript import Turn


class PolicyModel(BaseLLM):
    """One rollout's view of the policy: a sampler, a budget, and the turns so far."""

    def __init__(self, sampler: Sampler, renderer: Renderer, budget: ContextBudget, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sampler = sampler
        self._renderer = renderer
        self._budget = budget
        self._seed = seed
        self._conversation = Conversation(renderer)
        self.unanswered_seconds = 0.0
        """How long a call had waited when it was given up or failed."""
        self.turns: list[Turn] = []
        self.failure: Exception | None = None
        """What the sampler raised, if it did: Harbor keeps only the text of an exception."""

    async def call(
        self, prompt: str, message_history: list[dict[str, Any]] | None = None, **kwargs: Any
    ) -> LLMResponse:
        history = message_history or []
        prompt_ids = self._conversation.prompt_ids(history, prompt)
        answer_tokens = self._budget.answer_tokens(len(prompt_ids))
        if answer_tokens is None:
            raise ContextLengthExceededError(
                f"a prompt of {len(prompt_ids)} tokens leaves no room for an answer "
                f"in a context of {self._budget.context_limit}"
            )
        seed = turn_seed(self._seed, len(self.turns))
        answer = await self._sample(prompt_ids, answer_tokens, seed)
        self.turns.append(
            Turn(
                prompt=prompt_ids,
                sampled=answer.tokens,
                logprobs=answer.logprobs,
                policy_version=self._sampler.policy_version,
                stop_reason=answer.stop_reason,
                seconds=answer.seconds,
            )
        )
        parsed = self._renderer.parse_response(list(answer.tokens), prompt_ids=list(prompt_ids))
        self._conversation.answered(history, prompt, prompt_ids, answer.tokens, parsed.content)
        if answer.stop_reason == "length":
            raise OutputLengthExceededError(
                f"the answer was cut at {answer_tokens} tokens", truncated_response=parsed.content
            )
        return LLMResponse(
            content=parsed.content,
            reasoning_content=parsed.reasoning_content,
            usage=UsageInfo(
                prompt_tokens=len(prompt_ids),
                completion_tokens=len(answer.tokens),
                cache_tokens=0,
                cost_usd=0.0,
            ),
        )

    async def _sample(self, prompt_ids: tuple[int, ...], answer_tokens: int, seed: int) -> SampledAnswer:
        asked = time.monotonic()
        try:
            return await self._sampler.sample(prompt_ids, answer_tokens, seed)
        except BaseException as error:
            self.unanswered_seconds = time.monotonic() - asked
            if isinstance(error, Exception):
                self.failure = error
            raise

    def count_tokens(self, messages: list[dict[str, Any]]) -> int:
        return self._conversation.count_tokens(messages)

    def get_model_context_limit(self) -> int:
        return self._budget.context_limit

    def get_model_output_limit(self) -> int | None:
        return self._budget.max_tokens
