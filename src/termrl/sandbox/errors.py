"""What can go wrong with a sandbox, one type per cause."""

from termrl.errors import UserError


class SandboxUnavailable(UserError):
    """This host does not let the local sandbox work; says what to change."""


class UnsupportedEnvironment(UserError):
    """The task's environment asks for something that the chosen backend does not have."""


class UnknownBackend(UserError):
    """An environment type that nothing answers to."""


class BackendNotReady(UserError):
    """The chosen backend can't run here yet; says why, what mends it, and what would work meanwhile."""


class SandboxLost(RuntimeError):
    """The sandbox or its keeper went away while it was needed. Infrastructure, never the policy's doing."""


class SandboxRefused(RuntimeError):
    """Something asked of a running sandbox could not be done; says what and why."""


class CommandTimeout(RuntimeError):
    """A command ran past its time limit and was ended, with everything it had started."""

    def __init__(self, message: str, stdout: str = "", stderr: str = "") -> None:
        super().__init__(message)
        self.stdout = stdout
        self.stderr = stderr
