"""Which task a group is about, in shuffled epochs: a function of the seed and the group's number alone.

No task comes twice before all have come once. How many steps there are is said here too, as it depends on
the number of tasks.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random

from termrl.config import TrainConfig

DEFAULT_STEPS = 100


def nth_task[Task](tasks: Sequence[Task], *, seed: int, number: int) -> Task:
    """The task of the group with this number."""
    epoch, position = divmod(number, len(tasks))
    return tasks[_order(len(tasks), seed, epoch)[position]]


@lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    Random(f"{seed}/epoch/{epoch}").shuffle(order)
    return order


def planned_steps(config: TrainConfig, task_count: int) -> int:
    """Steps until max_steps, or n_epochs passes over the tasks, whichever is first."""
    if config.n_epochs is None:
        return DEFAULT_STEPS if config.max_steps is None else config.max_steps
    steps = math.ceil(config.n_epochs * task_count / config.batch_size)
    return steps if config.max_steps is None else min(steps, config.max_steps)
