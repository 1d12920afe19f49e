import pytest

from termrl.policy.budget import ContextBudget


def test_an_answer_is_clamped_to_the_room_left() -> None:
    budget = ContextBudget(context_limit=100, max_tokens=40, min_answer_tokens=10)
    assert budget.answer_tokens(20) == 40
    assert budget.answer_tokens(70) == 30
    assert budget.answer_tokens(90) == 10


def test_with_less_room_than_an_answer_needs_there_is_none() -> None:
    budget = ContextBudget(context_limit=100, max_tokens=40, min_answer_tokens=10)
    assert budget.answer_tokens(91) is None
    assert budget.answer_tokens(500) is None


def test_answers_shorter_than_the_minimum_may_be_asked_for() -> None:
    assert ContextBudget(context_limit=100, max_tokens=4, min_answer_tokens=10).answer_tokens(96) == 4


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        ContextBudget(context_limit=0, max_tokens=1)
