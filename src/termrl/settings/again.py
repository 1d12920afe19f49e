"""Settings that are said again to a run that has its own: they must agree, save for what may change.

A run that is named again needs nothing else said. What would make its past another run's is refused, by name.
"""

from collections.abc import Mapping, Set
from typing import Any

from termrl.config import RolloutConfig
from termrl.errors import UserError
from termrl.settings import flatten, from_dict


def settings_again[Config: RolloutConfig](
    stored: Mapping[str, Any],
    said: Mapping[str, Any],
    config_type: type[Config],
    *,
    may_change: Set[str],
    began: str,
    refusal: type[UserError],
) -> Config:
    """The settings to go on with: those stored, with what was said now over them."""
    before, now = flatten(stored), flatten(said)
    changed = sorted(name for name in now if name not in may_change and _plain(now[name]) != before.get(name))
    if changed:
        name = changed[0]
        raise refusal(
            f"{began} with {name}={before.get(name)}, not {now[name]}: leave {', '.join(changed)} out to go "
            "on with it, or give another run_name."
        )
    return from_dict({**before, **now}, config_type)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
