"""What every rollout of a run shares: the agent's limits, where its sandbox runs, what is left on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LOCAL_ENVIRONMENT = "termrl.sandbox.local:LocalEnvironment"
AGENT = "termrl.agents.terminus:PolicyTerminus2"


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """`environment` is "local", the name of a Harbor environment, or an import path `module:Class`.

    `keep_trials` says which trial directories stay: "all", "failed" (what was not solved) or "none".
    `proactive_summarization_threshold` None means that history is summarized only when it must be.
    """

    model_name: str
    trials_dir: Path
    max_turns: int
    max_tokens: int
    context_limit: int
    min_answer_tokens: int = 16
    enable_summarize: bool = False
    proactive_summarization_threshold: int | None = None
    environment: str = "local"
    environment_settings: tuple[tuple[str, Any], ...] = ()
    agent_timeout_seconds: float | None = None
    keep_trials: Literal["all", "failed", "none"] = "none"
