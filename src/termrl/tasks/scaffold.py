"""A new task of one's own: a small one that is whole, so that it passes its own check as it stands."""

import re
from pathlib import Path

from termrl.tasks.errors import MalformedReferenceError, TaskExistsError
from termrl.tasks.writing import Files, write_whole

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_FILES: Files = {
    "instruction.md": (
        """\
/app/numbers.txt has one number a line. Write the sum of all of them to /app/sum.txt.
""",
        0o644,
    ),
    "task.toml": (
        """\
schema_version = "1.4"

[metadata]
difficulty = "easy"
category = "text"

[environment]
network_mode = "no-network"
build_timeout_sec = 600

[agent]
timeout_sec = 300

[verifier]
timeout_sec = 60
""",
        0o644,
    ),
    "environment/Dockerfile": (
        """\
# termrl/host is the machine's own programs, for the local sandbox. Any image does for docker and the clouds.
FROM termrl/host
WORKDIR /app
COPY numbers.txt /app/numbers.txt
""",
        0o644,
    ),
    "environment/numbers.txt": ("17\n4\n108\n-9\n", 0o644),
    "solution/solve.sh": (
        """\
#!/bin/bash
# The oracle: what shows that the task can be solved.
awk '{ sum += $1 } END { print sum }' /app/numbers.txt > /app/sum.txt
""",
        0o755,
    ),
    "tests/test.sh": (
        """\
#!/bin/bash
# Runs when the agent has left. The reward is a number from 0 to 1.
reward=0
if [[ -f /app/sum.txt && $(< /app/sum.txt) == 120 ]]; then
  reward=1
fi
echo $reward > /logs/verifier/reward.txt
""",
        0o755,
    ),
}


def write_new_task(name: str, directory: Path) -> Path:
    """Write a new task directory below `directory`; raises a `TaskError` if something is there already."""
    if not _NAME.fullmatch(name):
        raise MalformedReferenceError(
            f"{name!r} cannot be the name of a task: it takes letters, digits, '.', '_' and '-', "
            "and begins with a letter or a digit."
        )
    path = directory / name
    if path.exists() or path.is_symlink():
        raise TaskExistsError(f"{path} is there already: choose another name.")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, _FILES)
    except OSError as error:
        raise TaskExistsError(f"The task cannot be written to {path}: {error.strerror}.") from error
    return path
