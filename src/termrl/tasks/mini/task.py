"""A task of `termrl/terminal-mini` before it is written out.

`files` are put into /app, then `setup` runs there once, when the sandbox is built; `start` runs in every
sandbox before the agent. `test` is bash in /app after the agent has left: `check WORDS... -- COMMAND...`
notes a failure, and the reward is 1 if there was none. `same FILE TEXT` compares but for blanks at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from termrl.tasks.writing import Files

_NEEDED = "git make python3 awk tar gzip"

_TEST = """\
#!/bin/bash
solved=1
# check WORDS... -- COMMAND...: what should hold, and the command that finds out.
check() {
  local what=()
  while [[ $1 != -- ]]; do what+=("$1"); shift; done
  shift
  if ! "$@"; then echo "does not hold: ${what[*]}"; solved=0; fi
}
# same FILE TEXT: the file's text but for blanks at the end of it and of its lines.
same() {
  [[ -f $1 && $(sed 's/[[:space:]]*$//' "$1") == "$2" ]] || { echo "found:"; head -c 2000 "$1"; return 1; }
}
absent() { [[ ! -e $1 && ! -L $1 ]]; }

cd /app || solved=0
"""

_TASK_TOML = """\
schema_version = "1.4"

[metadata]
difficulty = "{difficulty}"
category = "{category}"
tags = ["multi-turn"]

[environment]
network_mode = "no-network"
build_timeout_sec = 300
{start}
[agent]
timeout_sec = 600

[verifier]
timeout_sec = 120
"""

# Harbor's health check is the one thing that runs in a sandbox before the agent does.
_START = """
[environment.healthcheck]
command = "bash /opt/start.sh"
interval_sec = 1
"""


@dataclass(frozen=True)
class MiniTask:
    name: str
    category: str
    difficulty: Literal["easy", "medium", "hard"]
    instruction: str
    solve: str
    test: str
    files: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    start: str = ""


def mini_task_files(task: MiniTask) -> Files:
    """The content and mode of every file of the task's directory."""
    start = _START if task.start else ""
    toml = _TASK_TOML.format(difficulty=task.difficulty, category=task.category, start=start)
    files: Files = {
        "instruction.md": (task.instruction.strip() + "\n", 0o644),
        "task.toml": (toml, 0o644),
        "environment/Dockerfile": (_dockerfile(task), 0o644),
        "solution/solve.sh": (f"#!/bin/bash\nset -eu\ncd /app\n{task.solve.strip()}\n", 0o755),
        "tests/test.sh": (
            f"{_TEST}{task.test.strip()}\n\necho $solved >/logs/verifier/reward.txt\n",
            0o755,
        ),
    }
    for path, content in task.files.items():
        files[f"environment/files/{path}"] = (content, 0o644)
    if task.setup:
        files["environment/setup.sh"] = (f"set -eu\ncd /app\n{task.setup.strip()}\n", 0o644)
    if task.start:
        files["environment/start.sh"] = (f"cd /app\n{task.start.strip()}\n", 0o644)
    return files


def _dockerfile(task: MiniTask) -> str:
    lines = ["FROM termrl/host", "WORKDIR /app"]
    missing = (
        f'for tool in {_NEEDED}; do command -v $tool >/dev/null || {{ echo "install $tool"; exit 1; }}; done'
    )
    lines.append(f"RUN {missing}")
    if task.files:
        lines.append("COPY files/ /app/")
    if task.start:
        lines.append("COPY start.sh /opt/start.sh")
    if task.setup:
        lines += ["COPY setup.sh /opt/setup.sh", "RUN bash /opt/setup.sh && rm /opt/setup.sh"]
    return "\n".join(lines) + "\n"
