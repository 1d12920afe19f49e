"""What a value must not be below or above, and the error of one that is."""

from termrl.errors import UserError


class ContradictionError(UserError):
    """Settings that cannot hold together, or a value outside of what makes sense."""


def at_least(least: float, config: object, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ContradictionError(f"{prefix}{name} is {value}: it must be {least} or more.")


def below(bound: float, config: object, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value < bound:
            raise ContradictionError(f"{prefix}{name} is {value}: it must be from 0 to below {bound}.")


def above_zero(config: object, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ContradictionError(f"{prefix}{name} is {value}: it must be above 0.")
