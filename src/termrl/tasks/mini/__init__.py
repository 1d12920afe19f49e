"""The built-in dataset `termrl/terminal-mini`: 20 tasks of several turns, to try real models on.

Each is a `MiniTask` in the module of its category; docs/tasks.md says how to add one. They need bash,
coreutils, tar, gzip, awk, git, make and python3 from the machine or image they run on, and no network.
"""

from termrl.tasks.mini import archives, builds, history, logs, permissions, processes, services, text
from termrl.tasks.mini.task import MiniTask, mini_task_files
from termrl.tasks.writing import Files

MINI = "termrl/terminal-mini"
TASKS: tuple[MiniTask, ...] = (
    *logs.TASKS,
    *history.TASKS,
    *archives.TASKS,
    *permissions.TASKS,
    *text.TASKS,
    *processes.TASKS,
    *services.TASKS,
    *builds.TASKS,
)

__all__ = ["MINI", "TASKS", "MiniTask", "mini_files"]


def mini_files() -> Files:
    """Every file of the dataset, by its path: task, file."""
    return {f"{task.name}/{path}": file for task in TASKS for path, file in mini_task_files(task).items()}
