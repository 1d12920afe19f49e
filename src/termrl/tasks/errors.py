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


class OutwardLinkError(TaskError):
    """A link in a task directory leads out of it."""


class OversizedFileError(TaskError):
    """A file is too big to be carried into every sandbox."""


class MalformedListError(TaskError):
    """A list file cannot be read as one."""


class MalformedReferenceError(TaskError):
    """What was typed cannot be the name of a dataset."""


class MalformedRegistryError(TaskError):
    """A registry.json is not one."""


class RegistryUnreachableError(TaskError):
    """A dataset is not on this machine, and where it would come from cannot be reached."""


class UnknownRevisionError(TaskError):
    """A git repository has no such commit, branch or tag."""


class FetchError(TaskError):
    """A dataset could not be fetched."""


class StaleCacheError(TaskError):
    """What the cache holds of a task is not what was fetched."""


class ConversionError(TaskError):
    """A Terminal-Bench 1 task cannot be turned into a Harbor task."""


class MalformedQuarantineError(TaskError):
    """A quarantine file cannot be read as one."""


class SplitError(TaskError):
    """A dataset cannot be split as asked."""


class TaskExistsError(TaskError):
    """A new task would overwrite something."""
