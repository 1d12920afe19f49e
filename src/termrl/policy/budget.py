"""How many tokens an answer may have: what was asked for, clamped to the room left in the context."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """`context_limit` covers prompt and answer; below `min_answer_tokens` of room there is no answer."""

    context_limit: int
    max_tokens: int
    min_answer_tokens: int = 16

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.context_limit < 1 or self.min_answer_tokens < 1:
            raise ValueError(f"a context budget needs positive numbers of tokens, got {self}")

    def answer_tokens(self, prompt_tokens: int) -> int | None:
        """The most tokens the answer to this prompt may have, or None when the context is used up."""
        room = self.context_limit - prompt_tokens
        if room < min(self.min_answer_tokens, self.max_tokens):
            return None
        return min(self.max_tokens, room)
