"""The errors a user can do something about. The command line prints them as one sentence and exits."""


class UserError(Exception):
    """Bad input or a missing part: said before anything is spent, exit code 2."""

    exit_code = 2


class LimitReachedError(UserError):
    """A limit of time, tokens or money is reached; everything is stored. Exit code 3."""

    exit_code = 3


class Interrupted(Exception):
    """The user asked a run to end; everything is stored and it can go on."""


class StorageError(UserError):
    """What was to be kept could not be written; everything stored before is intact. Exit code 1."""

    exit_code = 1
