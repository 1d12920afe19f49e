"""`environment_type=`: which Harbor environment a sandbox is made by, and with which settings.

`local` is ours; `docker` and `podman` are Harbor's with the run's label on all that they make; every other
name is the environment of that name in the installed Harbor; `module:name` is an environment class or a
sandbox factory of one's own. A setting that the chosen backend would ignore is refused by name.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harbor.environments.base import BaseEnvironment
from harbor.environments.factory import _ENVIRONMENT_REGISTRY, _load_environment_class
from harbor.models.environment_type import EnvironmentType
from harbor.models.task.config import TaskConfig
from harbor.models.trial.config import EnvironmentConfig
from harbor.utils.import_path import import_symbol

from termrl.errors import UserError
from termrl.sandbox.errors import BackendNotReady, UnknownBackend
from termrl.sandbox.factory import hand_over
from termrl.sandbox.interface import SandboxFactory
from termrl.sandbox.labels import current_label
from termrl.sandbox.lifetime import lifetime_seconds

LOCAL = "local"
OURS = {
    LOCAL: "termrl.sandbox.local:LocalEnvironment",
    "docker": "termrl.sandbox.engines:LabelledDocker",
    "podman": "termrl.sandbox.engines:LabelledPodman",
    "daytona": "termrl.sandbox.clouds:FrozenDaytona",
    "modal": "termrl.sandbox.clouds:FrozenModal",
}
FACTORY = "termrl.sandbox.bridge:InterfaceEnvironment"
_LIFETIMES = {
    LOCAL: "lifetime",
    "docker": "lifetime",
    "podman": "lifetime",
    "modal": "sandbox_timeout_secs",
    "opensandbox": "sandbox_timeout_sec",
    "tensorlake": "timeout_secs",
    "cwsandbox": "max_lifetime_seconds",
    "vercel": "sandbox_lifetime_seconds",
    "mosaic": "ttl_seconds",
}
"""What each backend calls the time after which a sandbox ends by itself."""
_LABELLED = ("daytona", "modal")
"""The clouds whose sandboxes take labels of ours."""


class BadEnvironmentSetting(UserError):
    """environment_kwargs or base_images that can't be read, or that the backend does not have."""


@dataclass(frozen=True)
class Backend:
    """A backend as it was chosen: its name and what it is told."""

    environment_type: str = LOCAL
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    sandbox_timeout: int | None = None
    agent_timeout: float | None = None
    factory: SandboxFactory | None = None

    @property
    def name(self) -> str:
        return "factory" if self.factory is not None else self.environment_type

    def check(self) -> None:
        """Refuses a type that nothing answers to, and a setting that it would ignore."""
        if self.factory is not None:
            return
        if ":" in self.environment_type:
            _imported(self.environment_type)
        elif self.environment_type not in backend_names():
            close = difflib.get_close_matches(self.environment_type, backend_names(), n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(backend_names())}."
            raise UnknownBackend(f"There is no environment_type '{self.environment_type}': {hint}")
        elif self.sandbox_timeout is not None and self.environment_type not in _LIFETIMES:
            raise BadEnvironmentSetting(
                f"sandbox_timeout is set, and {self.environment_type} sandboxes have no lifetime of "
                f"their own: leave it out, or use one of {', '.join(_LIFETIMES)}."
            )

    def environment_config(
        self, task: TaskConfig | None = None, *, lifetime: int | None = None
    ) -> EnvironmentConfig:
        """The settings of a trial's environment, which lives as long as `task` needs, or for `lifetime`."""
        kwargs = dict(self.kwargs)
        needed = lifetime_seconds(task, self.agent_timeout) if task is not None else lifetime
        lifetime = self.sandbox_timeout or needed
        if self.factory is not None:
            kwargs = {"factory": hand_over(self.factory), "lifetime": lifetime, **kwargs}
            return EnvironmentConfig(import_path=FACTORY, kwargs=kwargs)
        if ":" in self.environment_type:
            return self._own_config(kwargs, lifetime)
        if lifetime is not None and self.environment_type in _LIFETIMES:
            kwargs.setdefault(_LIFETIMES[self.environment_type], lifetime)
        if self.environment_type in _LABELLED:
            kwargs["labels"] = {**current_label().as_labels(), **kwargs.get("labels", {})}
        if self.environment_type in OURS:
            return EnvironmentConfig(import_path=OURS[self.environment_type], kwargs=kwargs)
        return EnvironmentConfig(type=EnvironmentType(self.environment_type), kwargs=kwargs)

    def _own_config(self, kwargs: dict[str, Any], lifetime: int | None) -> EnvironmentConfig:
        symbol = _imported(self.environment_type)
        if isinstance(symbol, type) and issubclass(symbol, BaseEnvironment):
            return EnvironmentConfig(import_path=self.environment_type, kwargs=kwargs)
        kwargs = {"factory": self.environment_type, "lifetime": lifetime, **kwargs}
        return EnvironmentConfig(import_path=FACTORY, kwargs=kwargs)

    def environment_class(self) -> type[BaseEnvironment]:
        """The class whose `preflight` and capabilities are asked."""
        config = self.environment_config()
        if config.import_path is not None:
            loaded: type[BaseEnvironment] = import_symbol(config.import_path)
            return loaded
        return load_environment_class(self.environment_type)


def backend_names() -> list[str]:
    """Every environment type there is: ours, then the installed Harbor's."""
    return [LOCAL, *(kind.value for kind in _ENVIRONMENT_REGISTRY)]


def load_environment_class(name: str) -> type[BaseEnvironment]:
    """Harbor's environment of that name; says which extra to install where its client is missing."""
    try:
        return _load_environment_class(EnvironmentType(name))
    except ImportError as error:
        extra = _ENVIRONMENT_REGISTRY[EnvironmentType(name)].pip_extra
        raise BackendNotReady(
            f"environment_type={name} needs a client that is not installed: "
            f"pip install 'harbor[{extra or name}]'."
        ) from error


def parse_pairs(pairs: tuple[str, ...] | None, setting: str, *, as_json: bool) -> dict[str, Any]:
    """`NAME=VALUE` each; a value that reads as JSON is what it says (`true`, `3`, `[1, 2]`)."""
    values: dict[str, Any] = {}
    for pair in pairs or ():
        # An image's name may hold a digest (`@sha256:...`) but no '=', and so do names of settings.
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise BadEnvironmentSetting(f"{setting} holds '{pair}', which is not NAME=VALUE.")
        values[name.strip()] = _json_or_text(value.strip()) if as_json else value.strip()
    return values


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _imported(path: str) -> Any:
    try:
        return import_symbol(path)
    except (ValueError, ImportError) as error:
        raise UnknownBackend(
            f"environment_type={path} can't be imported: {error}: "
            "write module.path:name of an environment class or a sandbox factory."
        ) from error
