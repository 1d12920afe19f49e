"""What a training run works with, from the base model to the last evaluation."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tinker

from termrl.config import TrainConfig
from termrl.learn.meter import Meter
from termrl.learn.progress import Progress
from termrl.learn.stop import Stop
from termrl.policy.rendering import Renderer
from termrl.policy.sampler import Sampler
from termrl.policy.tokenizer import Tokenizer
from termrl.rollout.pool import RolloutPool
from termrl.store import Run
from termrl.tasks import HarborTask

STAGE = "train"
"""The stage of the rollouts that are trained on."""

Evaluate = Callable[[str, int, Sampler, Progress], Awaitable[None]]
"""Evaluates a sampler on held-out tasks: the name of the evaluation, the step, the sampler, who watches."""


@dataclass(frozen=True)
class Training:
    """`log` is given each step's metrics; `steps` is how many there are to be."""

    run: Run
    config: TrainConfig
    service: tinker.ServiceClient
    pool: RolloutPool
    tasks: Sequence[HarborTask]
    tokenizer: Tokenizer
    renderer: Renderer
    steps: int
    meter: Meter
    stop: Stop
    progress: Progress
    evaluate: Evaluate
    log: Callable[[int, dict[str, Any]], None]

    @property
    def stop_tokens(self) -> Sequence[int]:
        return self.renderer.get_stop_token_ids()
