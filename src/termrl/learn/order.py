"""Which task a group of a step is about: shuffled epochs, as a function of the seed and the place alone.

Nothing has to be remembered to go on after a break, and no task comes twice before all have come once.
"""

from collections.abc import Sequence
from random import Random


def step_tasks[Task](tasks: Sequence[Task], *, seed: int, step: int, batch_size: int) -> list[Task]:
    """The tasks of one step's groups."""
    return [_nth(tasks, seed, step * batch_size + group) for group in range(batch_size)]


def _nth[Task](tasks: Sequence[Task], seed: int, index: int) -> Task:
    epoch, position = divmod(index, len(tasks))
    order = list(range(len(tasks)))
    Random(f"{seed}/epoch/{epoch}").shuffle(order)
    return tasks[order[position]]
