"""What a rollout asked of its model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """Model calls, their tokens, and what they cost in dollars where the service said so."""

    turns: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    cost: float | None = None
