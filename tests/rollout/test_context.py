"""Context that never overflows: whatever a policy says for however long, the rollout is scored."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from termrl.engine.catalog import resolve_model
from termrl.policy.rendering import make_renderer
from termrl.policy.sampler import SampledAnswer
from termrl.policy.tokenizer import load_tokenizer
from termrl.policy.transcript import segments_of
from termrl.rollout.pool import RolloutPool
from termrl.rollout.runner import RolloutRunner
from termrl.rollout.settings import RolloutSettings

Bench = Any

CONTEXT = 4096
MAX_TOKENS = 512
ROLLOUTS = 100


class Rambler:
    """A policy that goes on: long screens, long answers, answers without end, nonsense. Never done."""

    policy_version = 0

    def __init__(self, tokenizer: Any, stop: int) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self.longest = 0

    def for_attempt(self) -> "Rambler":
        return self

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        rng = random.Random(seed)
        lines = rng.choice([1, 30, 200, 2000])
        say = {
            "analysis": "so " * rng.choice([1, 20, 200]),
            "plan": "p",
            "commands": [{"keystrokes": f"seq {lines}\n", "duration": 0.0}],
            "task_complete": False,
        }
        text = rng.choice([json.dumps(say)] * 4 + ["I do not know. " * 40, ""])
        tokens = (*self._tokenizer.encode(text, add_special_tokens=False), self._stop)
        cut = tokens[:max_tokens]
        self.longest = max(self.longest, len(prompt) + len(cut))
        return SampledAnswer(cut, (0.0,) * len(cut), "stop" if len(cut) == len(tokens) else "length", 0.0)


async def test_a_hundred_long_rollouts_in_a_small_context_end_without_an_error(
    bench: Bench, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(resolve_model("termrl/tiny"))
    renderer = make_renderer(tokenizer, "termrl/tiny")
    rambler = Rambler(tokenizer, renderer.get_stop_token_ids()[0])

    async def run(summarize: bool, count: int) -> list[Any]:
        settings = RolloutSettings(
            model_name="termrl/tiny",
            trials_dir=tmp_path / "trials",
            max_turns=12,
            max_tokens=MAX_TOKENS,
            context_limit=CONTEXT,
            enable_summarize=summarize,
            proactive_summarization_threshold=1000 if summarize else None,
        )
        pool = RolloutPool(RolloutRunner(settings, renderer), concurrency=4, retries=0)
        return await asyncio.gather(*(pool.run(bench.task, rambler, seed=seed) for seed in range(count)))

    rollouts = [*await run(True, ROLLOUTS // 2), *await run(False, ROLLOUTS // 2)]
    assert len(rollouts) == ROLLOUTS
    excluded = [
        (rollout.outcome, rollout.detail[-500:]) for rollout in rollouts if not rollout.outcome.scored
    ]
    assert excluded == []
    assert all(rollout.reward == 0.0 for rollout in rollouts)
    assert rambler.longest <= CONTEXT
    outcomes = {rollout.outcome.value for rollout in rollouts}
    assert "context_exhausted" in outcomes
    assert "turn_limit" in outcomes
    summarized = [rollout for rollout in rollouts if len(segments_of(rollout.turns)) > 2]
    assert summarized, "no history was ever compacted"
