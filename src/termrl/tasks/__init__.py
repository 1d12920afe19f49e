"""Tasks: Harbor task directories, the sources they are loaded from, and the datasets that ship."""

from termrl.tasks.basics import Split
from termrl.tasks.builtin import BUILTIN_DATASETS
from termrl.tasks.datasets import BadTask, Dataset, load_dataset, load_harbor_tasks
from termrl.tasks.errors import TaskError
from termrl.tasks.solution import reference_commands
from termrl.tasks.task import HarborTask, load_harbor_task, validate_task_dir

__all__ = [
    "BUILTIN_DATASETS",
    "BadTask",
    "Dataset",
    "HarborTask",
    "Split",
    "TaskError",
    "load_dataset",
    "load_harbor_task",
    "load_harbor_tasks",
    "reference_commands",
    "validate_task_dir",
]
