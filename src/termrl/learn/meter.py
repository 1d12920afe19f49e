"""The meter: every token sampled and trained on, every second of a sandbox, and what they cost.

It counts calls as they are answered, so retries and rollouts that came to nothing are counted too. What was
spent before a break is read from the store. A limit that is passed asks the run to stop.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from termrl.config import TrainConfig
from termrl.errors import LimitReachedError
from termrl.learn.prices import Prices
from termrl.learn.stop import Stop
from termrl.policy.sampler import SampledAnswer, Sampler
from termrl.rollout.pool import RolloutPool
from termrl.rollout.record import Rollout
from termrl.store import Run

FACT = "spent"


@dataclass(frozen=True, slots=True)
class Spent:
    prefill_tokens: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    sandbox_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.sampled_tokens + self.trained_tokens

    def cost(self, prices: Prices) -> float | None:
        """Dollars, or None where a price is not known."""
        if (
            prices.prefill is None
            or prices.sample is None
            or prices.train is None
            or prices.sandbox_hour is None
        ):
            return None
        tokens = (
            self.prefill_tokens * prices.prefill
            + self.sampled_tokens * prices.sample
            + self.trained_tokens * prices.train
        )
        return tokens / 1e6 + self.sandbox_seconds / 3600 * prices.sandbox_hour


def rollout_spent(rollout: Rollout) -> Spent:
    """What one rollout took."""
    return Spent(
        prefill_tokens=rollout.prompt_tokens,
        sampled_tokens=rollout.sampled_tokens,
        sandbox_seconds=rollout.timings.total,
    )


class Meter:
    def __init__(self, run: Run, config: TrainConfig, prices: Prices, pool: RolloutPool, stop: Stop) -> None:
        self._run = run
        self._config = config
        self._pool = pool
        self._stop = stop
        self.prices = prices
        self._before = _spent_before(run)
        self._started = time.monotonic()
        self._prefill = self._sampled = self._trained = 0

    @property
    def spent(self) -> Spent:
        """All of the run's sittings together."""
        before = self._before
        return Spent(
            prefill_tokens=before.prefill_tokens + self._prefill,
            sampled_tokens=before.sampled_tokens + self._sampled,
            trained_tokens=before.trained_tokens + self._trained,
            sandbox_seconds=before.sandbox_seconds + self._pool.sandbox_seconds,
            seconds=before.seconds + time.monotonic() - self._started,
        )

    def metered(self, sampler: Sampler) -> "MeteredSampler":
        return MeteredSampler(sampler, self)

    def count_sampling(self, prompt: int, sampled: int) -> None:
        self._prefill += prompt
        self._sampled += sampled
        self.check()

    def count_training(self, tokens: int) -> None:
        self._trained += tokens

    def check(self) -> None:
        """Asks the run to stop where a limit is passed."""
        config, spent = self._config, self.spent
        cost = spent.cost(self.prices)
        if config.max_hours is not None and spent.seconds > 3600 * config.max_hours:
            self._reached(f"max_hours={config.max_hours:g} is reached")
        if config.max_tokens_total is not None and spent.tokens > config.max_tokens_total:
            self._reached(f"max_tokens_total={config.max_tokens_total} is reached ({spent.tokens} were used)")
        if config.max_cost is not None and cost is not None and cost > config.max_cost:
            self._reached(f"max_cost={config.max_cost:g} is reached (${cost:.2f} was spent)")

    def _reached(self, what: str) -> None:
        self._stop.ask(
            LimitReachedError(
                f"{what}: the run stopped, with everything stored. Raise the limit and give "
                f"run_name={self._run.name} to go on."
            )
        )

    def save(self) -> None:
        """Keeps what was spent with the run."""
        self._run.record_fact(FACT, self.report())

    def report(self) -> dict[str, Any]:
        spent = self.spent
        return {**asdict(spent), "cost": spent.cost(self.prices)}


class MeteredSampler:
    """A sampler whose every answer is counted."""

    def __init__(self, sampler: Sampler, meter: Meter) -> None:
        self._sampler = sampler
        self._meter = meter

    @property
    def policy_version(self) -> int:
        return self._sampler.policy_version

    def for_attempt(self) -> "MeteredSampler":
        return MeteredSampler(self._sampler.for_attempt(), self._meter)

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        answer = await self._sampler.sample(prompt, max_tokens, seed)
        self._meter.count_sampling(len(prompt), len(answer.tokens))
        return answer


def _spent_before(run: Run) -> Spent:
    """What the store knows: the last saved figures, and no less than the stored rollouts took."""
    saved = run.fact(FACT, {})
    totals = run.token_totals()
    # Demonstrations are typed from a script: no model was asked.
    sampled = [total for stage, total in totals.items() if stage != "demonstrations"]
    return Spent(
        prefill_tokens=max(saved.get("prefill_tokens", 0), sum(total["prompt"] for total in sampled)),
        sampled_tokens=max(saved.get("sampled_tokens", 0), sum(total["sampled"] for total in sampled)),
        trained_tokens=max(
            saved.get("trained_tokens", 0), sum(step["train_tokens"] for step in run.steps().values())
        ),
        sandbox_seconds=saved.get("sandbox_seconds", 0.0),
        seconds=saved.get("seconds", 0.0),
    )
