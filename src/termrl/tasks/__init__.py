"""Tasks: Harbor task directories, the sources they are loaded from, and the built-in dataset."""

from termrl.tasks.builtin import BUILTIN_DATASETS, Split
from termrl.tasks.datasets import load_harbor_tasks
from termrl.tasks.errors import TaskError
from termrl.tasks.solution import reference_commands
from termrl.tasks.task import HarborTask, load_harbor_task, validate_task_dir

__all__ = [
    "BUILTIN_DATASETS",
    "HarborTask",
    "Split",
    "TaskError",
    "load_harbor_task",
    "load_harbor_tasks",
    "reference_commands",
    "validate_task_dir",
]
