"""One Harbor task directory, loaded and checked.

The name and the instruction are Harbor's own reading of the directory, so that they agree with Harbor's trial
results; a task in several steps has its instructions in the steps and an empty one here.
Loading reads two small files, looks whether the rest is there and surveys it. `validate_task_dir` also lets
Harbor judge.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harbor.environments.definition import has_agent_environment_definition
from harbor.models.task.config import StepConfig
from harbor.models.task.paths import TaskPaths
from harbor.models.task.task import Task, strip_canary
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition

from termrl.tasks.contents import TaskContents, survey
from termrl.tasks.errors import (
    InvalidTaskError,
    MissingEnvironmentError,
    MissingInstructionError,
    MissingTestsError,
    UnreadableTaskError,
)
from termrl.tasks.task_toml import TaskToml, read_task_toml


@dataclass(frozen=True)
class HarborTask:
    """A task: what the agent is told, and the directory that holds everything else."""

    task_name: str
    instruction: str
    task_dir: Path
    config: TaskToml = field(default_factory=TaskToml, repr=False, compare=False)
    contents: TaskContents | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.config, dict):
            # Whoever makes tasks by hand may give the plain table.
            object.__setattr__(self, "config", TaskToml.of_table(self.config))


def load_harbor_task(task_dir: Path) -> HarborTask:
    """Load one task directory; raises a `TaskError` that names what is missing or wrong."""
    paths = TaskPaths(task_dir)
    try:
        config = read_task_toml(paths.config_path)
        _require_environment(config, paths)
        steps: Sequence[StepConfig | None] = config.steps or [None]
        for step in steps:
            _require_instruction(paths, step)
            _require_tests(config, paths, step)
        contents = survey(task_dir)
        instruction = "" if config.steps else strip_canary(_read_text(paths.instruction_path))
    except OSError as error:
        raise UnreadableTaskError(
            f"{error.filename or task_dir} cannot be read: {error.strerror}."
        ) from error
    except ValueError as error:
        raise InvalidTaskError(f"Harbor refuses the task {task_dir}: {_sentence(error)}") from error
    return HarborTask(
        task_name=config.task.name if config.task else paths.task_dir.name,
        instruction=instruction,
        task_dir=paths.task_dir,
        config=config,
        contents=contents,
    )


def validate_task_dir(task_dir: Path) -> None:
    """Check a task directory as thoroughly as Harbor will when a trial starts; raises a `TaskError`."""
    load_harbor_task(task_dir)
    try:
        Task(task_dir)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidTaskError(f"Harbor refuses the task {task_dir}: {_sentence(error)}") from error


def _require_environment(config: TaskToml, paths: TaskPaths) -> None:
    if has_agent_environment_definition(paths.environment_dir, docker_image=config.environment.docker_image):
        return
    raise MissingEnvironmentError(
        f"The task {paths.task_dir} does not say what its sandbox starts from: there is no "
        "environment/Dockerfile, no environment/docker-compose.yaml and no docker_image in its task.toml; "
        "add one of them."
    )


def _require_instruction(paths: TaskPaths, step: StepConfig | None) -> None:
    path = paths.step_instruction_path(step.name) if step else paths.instruction_path
    if not path.is_file():
        raise MissingInstructionError(
            f"The task {paths.task_dir} has no {path.relative_to(paths.task_dir)}; "
            "add one that tells the agent what to do."
        )


def _require_tests(config: TaskToml, paths: TaskPaths, step: StepConfig | None) -> None:
    definition = resolve_verifier_environment_definition(config, paths, step)
    if definition is not None and definition.bundled_tests:
        return
    system = definition.config.os if definition else config.environment.os
    if step is not None and paths.discovered_step_test_path_for(step.name, system) is not None:
        return
    if paths.discovered_test_path_for(system) is None:
        expected = paths.test_path_for(system).relative_to(paths.task_dir)
        raise MissingTestsError(
            f"The task {paths.task_dir} has no {expected}, so nothing can grade it; "
            "add one that writes /logs/verifier/reward.txt."
        )


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidTaskError(f"{path} is not UTF-8 text: {error.reason}.") from error


def _sentence(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".") + "."
