"""What every rollout of a run shares: agent and limits, sandbox, how it is graded, what is kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LOCAL_ENVIRONMENT = "termrl.sandbox.local:LocalEnvironment"


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """`agent` is "terminus-2", "bash", the name of a Harbor agent, or an import path `module:Class`.

    `environment` is "local", the name of a Harbor environment, or an import path `module:Class`.
    `keep_trials` says which trial directories stay: "all", "failed" (what was not solved) or "none".
    `proactive_summarization_threshold` None means that history is summarized only when it must be.
    """

    model_name: str
    trials_dir: Path
    max_turns: int
    max_tokens: int
    context_limit: int
    min_answer_tokens: int = 16
    agent: str = "terminus-2"
    agent_kwargs: tuple[tuple[str, Any], ...] = ()
    early_return: bool = False
    keep_thinking: bool = True
    enable_summarize: bool = False
    proactive_summarization_threshold: int | None = None
    environment: str = "local"
    environment_settings: tuple[tuple[str, Any], ...] = ()
    agent_timeout_seconds: float | None = None
    timeout_multiplier: float = 1.0
    reward: str | None = None
    reward_fn: str | None = None
    gateway_url: str | None = None
    gateway_port: int = 0
    gateway_tunnel: str | None = None
    keep_trials: Literal["all", "failed", "none"] = "none"
