"""One Harbor task directory, loaded and checked.

The name and the instruction are Harbor's own reading of the directory, so that they agree with Harbor's trial
results; a task in several steps has its instructions in the steps and an empty one here.
Loading reads two small files and looks whether the rest is there. `validate_task_dir` also lets Harbor judge.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harbor.models.task.config import StepConfig, TaskConfig
from harbor.models.task.paths import TaskPaths
from harbor.models.task.task import Task, strip_canary
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition
from pydantic import ValidationError

from termrl.tasks.errors import (
    InvalidTaskError,
    MalformedTaskConfigError,
    MissingEnvironmentError,
    MissingInstructionError,
    MissingTaskConfigError,
    MissingTestsError,
    UnreadableTaskError,
)


@dataclass(frozen=True)
class HarborTask:
    """A task: what the agent is told, and the directory that holds everything else."""

    task_name: str
    instruction: str
    task_dir: Path
    config: TaskConfig = field(repr=False, compare=False)


def load_harbor_task(task_dir: Path) -> HarborTask:
    """Load one task directory; raises a `TaskError` that names what is missing or wrong."""
    paths = TaskPaths(task_dir)
    try:
        config = _read_config(paths.config_path)
        _require_environment(config, paths)
        steps: Sequence[StepConfig | None] = config.steps or [None]
        for step in steps:
            _require_instruction(paths, step)
            _require_tests(config, paths, step)
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
    )


def validate_task_dir(task_dir: Path) -> None:
    """Check a task directory as thoroughly as Harbor will when a trial starts; raises a `TaskError`."""
    load_harbor_task(task_dir)
    try:
        Task(task_dir)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidTaskError(f"Harbor refuses the task {task_dir}: {_sentence(error)}") from error


def _read_config(path: Path) -> TaskConfig:
    if not path.is_file():
        raise MissingTaskConfigError(f"{path.parent} has no task.toml, so it is not a Harbor task.")
    try:
        text = path.read_bytes().decode()
        return TaskConfig.model_validate(tomllib.loads(text))
    except UnicodeDecodeError as error:
        raise MalformedTaskConfigError(f"{path} is not UTF-8 text: {error.reason}.") from error
    except tomllib.TOMLDecodeError as error:
        raise MalformedTaskConfigError(f"{path} is not valid TOML: {error}.") from error
    except ValidationError as error:
        raise MalformedTaskConfigError(_refusal(path, text, error)) from error


def _refusal(path: Path, text: str, error: ValidationError) -> str:
    first = error.errors()[0]
    keys = [str(part) for part in first["loc"]]
    line = _line_of(text, keys)
    where = f"{path}, line {line}," if line else str(path)
    setting = f"{'.'.join(keys)}: " if keys else ""
    return f"{where} is not a valid task.toml: {setting}{_sentence(first['msg'])}"


def _line_of(text: str, keys: list[str]) -> int | None:
    """The line that sets `table.key`; None where the key is missing or written in another form."""
    if not keys:
        return None
    table, wanted = "", ".".join(keys[:-1])
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            table = header[1]
        elif table == wanted and re.match(rf"\s*[\"']?{re.escape(keys[-1])}[\"']?\s*=", line):
            return number
    return None


def _require_environment(config: TaskConfig, paths: TaskPaths) -> None:
    if not paths.environment_dir.is_dir() and not config.environment.docker_image:
        raise MissingEnvironmentError(
            f"The task {paths.task_dir} has no environment directory; "
            "add environment/Dockerfile, which says what its sandbox starts from."
        )


def _require_instruction(paths: TaskPaths, step: StepConfig | None) -> None:
    path = paths.step_instruction_path(step.name) if step else paths.instruction_path
    if not path.is_file():
        raise MissingInstructionError(
            f"The task {paths.task_dir} has no {path.relative_to(paths.task_dir)}; "
            "add one that tells the agent what to do."
        )


def _require_tests(config: TaskConfig, paths: TaskPaths, step: StepConfig | None) -> None:
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
