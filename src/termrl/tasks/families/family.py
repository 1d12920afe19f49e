"""A family of tasks: the source from which any number of alike tasks are drawn.

A family is a phrasing, a command and a scene. `sample` draws the names, sets the scene and gives a
`TaskSpec`: all that a task directory is written from. The same generator state always gives the same spec.
Checks are bash conditions evaluated in /app after the agent has left; all must hold for reward 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from termrl.tasks.names import NameSource, distinct_names

APP = "/app"

# `read` keeps the trailing newlines that $(<file) would drop, and succeeds only if it meets a NUL byte.
_TEST = """\
#!/bin/bash
# holds FILE BYTES: FILE is a regular file of exactly these bytes.
holds() {{
  local bytes
  [[ -f $1 && ! -L $1 ]] || return 1
  IFS= read -r -d '' bytes <"$1" && return 1
  [[ $bytes == "$2" ]]
}}
# absent PATH: nothing is there, not even a dangling link.
absent() {{ [[ ! -e $1 && ! -L $1 ]]; }}

reward=0
if cd {app} &&
  {checks}; then
  reward=1
fi
echo $reward >/logs/verifier/reward.txt
"""


@dataclass(frozen=True)
class TaskSpec:
    """One task before it is written out: what is asked, the command that does it, and how it is checked."""

    instruction: str
    command: str
    files: Mapping[str, str]
    checks: tuple[str, ...]

    @property
    def test(self) -> str:
        """The text of tests/test.sh."""
        return _TEST.format(app=APP, checks=" &&\n  ".join(self.checks))


@dataclass(frozen=True)
class Scene:
    """The parameters of one task, the files it starts with and the conditions it ends in."""

    parameters: Mapping[str, str]
    checks: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """Tasks that differ in nothing but their names and contents."""

    name: str
    category: str
    difficulty: str
    phrasing: str
    command: str
    scene: Callable[[Random, NameSource], Scene]

    def sample(self, rng: Random, name: NameSource) -> TaskSpec:
        """Draw one task whose every name comes from `name`."""
        scene = self.scene(rng, name)
        return TaskSpec(
            instruction=self.phrasing.format_map(scene.parameters),
            command=self.command.format_map(scene.parameters),
            files=scene.files,
            checks=scene.checks,
        )


def holds(file: str, content: str) -> str:
    """The condition that a regular file has exactly this content."""
    quoted = content.replace("\n", "\\n")
    return f"holds {file} $'{quoted}'"


def draw(
    rng: Random, name: NameSource, parameters: int, lines: int | None = None
) -> tuple[list[str], list[str]]:
    """Distinct names for the parameters of a task and for the lines of its file (3 to 6 unless told)."""
    count = rng.randint(3, 6) if lines is None else lines
    names = distinct_names(rng, name, parameters + count)
    return names[:parameters], names[parameters:]


def text(lines: list[str]) -> str:
    """The content of a file of these lines."""
    return "".join(f"{line}\n" for line in lines)
