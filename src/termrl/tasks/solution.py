"""A task's reference solution as the command lines that a person would type.

Demonstrations are made of these. Lines are taken as they stand: scripts whose commands span several lines
(here-documents, loops) give several entries.
"""

import re

from termrl.tasks.errors import MissingSolutionError
from termrl.tasks.task import HarborTask

# What a script needs and a terminal that is open in /app does not.
_SCAFFOLDING = re.compile(r"#.*|set -\S+( pipefail)?|cd /app/?|")


def reference_commands(task: HarborTask) -> list[str]:
    """The commands of solution/solve.sh, without comments, `set -e` and `cd /app`."""
    path = task.task_dir / "solution" / "solve.sh"
    if not path.is_file():
        raise MissingSolutionError(
            f"The task {task.task_name} has no reference solution at {path}; "
            "add one, or leave the task out of what is demonstrated."
        )
    lines = (line.strip() for line in path.read_text().splitlines())
    commands = [line for line in lines if not _SCAFFOLDING.fullmatch(line)]
    if not commands:
        raise MissingSolutionError(
            f"The reference solution of the task {task.task_name}, {path}, has no command."
        )
    return commands
