from collections.abc import Sequence

import pytest

from termrl.policy.asking import EMPTY_ANSWERS, ContextExhausted, EmptyAnswersError, Policy
from termrl.policy.budget import ContextBudget
from termrl.policy.chatml import ChatMLRenderer
from termrl.policy.sampler import SampledAnswer

QUESTION = [{"role": "user", "content": "hello"}]


class Given:
    """Gives token lists in order, and remembers how many tokens it was allowed."""

    policy_version = 3

    def __init__(self, *answers: tuple[int, ...]) -> None:
        self._answers = iter(answers)
        self.allowed: list[int] = []

    def for_attempt(self) -> "Given":
        return self

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        self.allowed.append(max_tokens)
        tokens = next(self._answers)[:max_tokens]
        return SampledAnswer(tokens, (-1.0,) * len(tokens), "stop", 0.0)


async def test_a_service_that_answers_with_nothing_stops_the_run_and_says_why(
    renderer: ChatMLRenderer,
) -> None:
    policy = Policy(Given(*[()] * EMPTY_ANSWERS), renderer, ContextBudget(1000, 100), seed=0)
    for _ in range(EMPTY_ANSWERS - 1):
        await policy.ask(QUESTION)
    with pytest.raises(EmptyAnswersError, match="answers in a row without a single token: its key may lack"):
        await policy.ask(QUESTION)
    assert isinstance(policy.failure, EmptyAnswersError)


async def test_a_model_that_says_nothing_but_stop_is_the_policys_affair(renderer: ChatMLRenderer) -> None:
    stop = renderer.get_stop_token_ids()[0]
    policy = Policy(Given(*[(stop,)] * 10), renderer, ContextBudget(1000, 100), seed=0)
    for _ in range(10):
        assert (await policy.ask(QUESTION)).content == ""


async def test_an_answer_is_clamped_to_the_room_that_is_left(renderer: ChatMLRenderer) -> None:
    length = len(renderer.render_ids(QUESTION, add_generation_prompt=True))
    sampler = Given((1, 2), (1, 2))
    policy = Policy(sampler, renderer, ContextBudget(length + 30, 100), seed=0)
    await policy.ask(QUESTION)
    await policy.ask(QUESTION, max_tokens=20)
    assert sampler.allowed == [30, 20]
    full = Policy(Given(), renderer, ContextBudget(length + 3, 100), seed=0)
    with pytest.raises(ContextExhausted, match="leaves no room"):
        await full.ask(QUESTION)
    assert full.turns == []
