"""Which tasks to draw: shuffled epochs, or those that the policy sometimes solves.

The pass rate of a task is believed as a Beta distribution over what was solved of what was scored, older
results fading. A task is drawn in proportion to the expected p(1 - p) under that belief: most where it is
half solved or unknown, hardly where it is surely 0 or 1. A floor share is drawn from all tasks alike, so
those are revisited. Draws are a function of the seed, the number and the results before: nothing is hidden.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from termrl.config import TrainConfig
from termrl.learn.order import nth_task
from termrl.rollout.record import Rollout
from termrl.tasks import HarborTask

FADING = 0.8
"""How much of a task's earlier results is kept when a new group of it is in."""
PRIOR_WEIGHT = 4.0
"""Attempts that the results of earlier runs count for at most: the weights were others."""


@dataclass(frozen=True, slots=True)
class PassRate:
    """Solved and scored attempts at a task, the older ones faded."""

    solved: float = 0.0
    scored: float = 0.0

    @property
    def mean(self) -> float:
        return (1 + self.solved) / (2 + self.scored)

    @property
    def deviation(self) -> float:
        """The standard deviation of the belief: how unsure the rate is."""
        return float((self.mean * (1 - self.mean) / (3 + self.scored)) ** 0.5)

    @property
    def signal(self) -> float:
        """The expected p(1 - p): how much two attempts at the task are expected to differ."""
        failed = self.scored - self.solved
        return (1 + self.solved) * (1 + failed) / ((2 + self.scored) * (3 + self.scored))

    def after(self, rollouts: Iterable[Rollout]) -> "PassRate":
        scored = [rollout for rollout in rollouts if rollout.outcome.scored]
        solved = sum(rollout.solved for rollout in scored)
        return PassRate(FADING * self.solved + solved, FADING * self.scored + len(scored))

    def as_prior(self) -> "PassRate":
        share = min(1.0, PRIOR_WEIGHT / self.scored) if self.scored else 0.0
        return PassRate(share * self.solved, share * self.scored)


class Curriculum:
    def __init__(
        self, tasks: Sequence[HarborTask], config: TrainConfig, prior: Mapping[str, PassRate] | None = None
    ) -> None:
        self._tasks = tasks
        self._config = config
        self.rates: dict[str, PassRate] = {
            task.task_name: (prior or {}).get(task.task_name, PassRate()) for task in tasks
        }

    def learn(self, task_name: str, rollouts: Iterable[Rollout]) -> None:
        """A group of this task was trained on."""
        if task_name in self.rates:
            self.rates[task_name] = self.rates[task_name].after(rollouts)

    def draw(self, number: int, taken: Sequence[str] = ()) -> HarborTask:
        """The task of the group with this number; not one of those `taken`, if there are others."""
        config = self._config
        if config.curriculum == "off":
            return nth_task(self._tasks, seed=config.seed, number=number)
        free = [task for task in self._tasks if task.task_name not in set(taken)] or list(self._tasks)
        random = Random(f"{config.seed}/curriculum/{number}")
        if random.random() < config.curriculum_floor:
            return random.choice(free)
        return random.choices(free, [self.rates[task.task_name].signal for task in free])[0]
