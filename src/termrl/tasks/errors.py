"""What can be wrong with a source of tasks: one type per cause, each said in one sentence."""

from termrl.errors import UserError


class TaskError(UserError):
    """A task or a dataset cannot be used as it is."""


class MissingTestsError(TaskError):
    """A task directory has nothing to grade it with."""


class MissingInstructionError(TaskError):
    """A task directory does not say what to do."""


class MissingTaskConfigError(TaskError):
    """A directory looks like a task but has no task.toml."""


class MissingEnvironmentError(TaskError):
    """A task says nothing about the machine it runs on."""


class MissingSolutionError(TaskError):
    """A task has no reference solution."""


class MalformedTaskConfigError(TaskError):
    """A task.toml is not TOML, or not what Harbor understands."""


class InvalidTaskError(TaskError):
    """Harbor refuses the task directory."""


class UnreadableTaskError(TaskError):
    """The system does not let us read a task."""


class UnwritableCacheError(TaskError):
    """The built-in tasks cannot be written out."""


class UnknownDatasetError(TaskError):
    """A source is neither a directory nor the name of a dataset."""


class NoTasksError(TaskError):
    """A directory holds no task."""


class DuplicateTaskError(TaskError):
    """Two tasks of one source have the same name."""
