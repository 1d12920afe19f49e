"""Reading settings: what a person types or keeps in a file becomes a `TrainConfig` or an `EvalConfig`.

`key=value`, `--key value` and `--key=value` mean the same; `config=PATH` (or the name of a file that
ships, `config=quickstart`) is read first and the command line overrides it. A key nobody knows and a
value of the wrong type are refused by name. `to_dict` and `from_dict` carry the tree through JSON.
"""

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import chz

from termrl.config import ALIASES, RolloutConfig, TrainConfig
from termrl.errors import UserError
from termrl.settings.values import expected, is_mapping, parse_value, show_value

SHIPPED = Path(__file__).parent


class UnknownSettingError(UserError):
    """A key that no setting has."""


class BadValueError(UserError):
    """A value that does not fit its setting's type."""


class SettingsFileError(UserError):
    """A settings file that is missing or is not TOML."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One leaf of the tree, by its dotted name."""

    name: str
    type: Any
    default: Any
    doc: str

    @property
    def aliases(self) -> tuple[str, ...]:
        return tuple(alias for alias, name in ALIASES.items() if name == self.name)

    @property
    def expected(self) -> str:
        """The type as a person would say it."""
        return expected(self.type)

    @property
    def shown_default(self) -> str:
        return show_value(self.default)


_SETTINGS: dict[type[RolloutConfig], Mapping[str, Setting]] = {}


def all_settings(config_type: type[RolloutConfig] = TrainConfig) -> Mapping[str, Setting]:
    """Every setting by its dotted name, in the order of the tree."""
    if config_type not in _SETTINGS:
        _SETTINGS[config_type] = _settings_of(config_type, "")
    return _SETTINGS[config_type]


def _settings_of(config_type: Any, prefix: str) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    default = config_type()
    for name, field in chz.chz_fields(config_type).items():
        if chz.is_chz(field.final_type):
            settings |= _settings_of(field.final_type, f"{prefix}{name}.")
        else:
            setting = Setting(f"{prefix}{name}", field.final_type, getattr(default, name), field._doc)
            settings[setting.name] = setting
    return settings


def resolve(arguments: Iterable[str]) -> TrainConfig:
    """The settings of a command line, with those of the file it names underneath."""
    return build(read_arguments(arguments))


def read_arguments(
    arguments: Iterable[str], config_type: type[RolloutConfig] = TrainConfig
) -> dict[str, Any]:
    """The typed values of a command line and of the file it names, by dotted name, defaults left out."""
    typed = parse_arguments(arguments, config_type)
    source = typed.pop("config", None)
    values = read_file(source, config_type) if source is not None else {}
    return values | _convert(typed, config_type=config_type)


def parse_arguments(
    arguments: Iterable[str], config_type: type[RolloutConfig] = TrainConfig
) -> dict[str, str]:
    """Key and value of each argument, as typed. A bare `--key` means `--key true`."""
    known = {*all_settings(config_type), *ALIASES, "config"}
    pairs: dict[str, str] = {}
    pending: str | None = None
    for argument in arguments:
        if pending is not None:
            is_value = not argument.startswith("--") and argument.partition("=")[0] not in known
            pairs[pending] = argument if is_value else "true"
            pending = None
            if is_value:
                continue
        dashed = argument.startswith("--")
        key, equals, value = argument.removeprefix("--").partition("=")
        if not key or not (equals or dashed):
            raise UnknownSettingError(
                f"'{argument}' is not a setting: settings are written key=value or --key value."
            )
        if equals:
            pairs[key.replace("-", "_")] = value
        else:
            pending = key.replace("-", "_")
    if pending is not None:
        pairs[pending] = "true"
    return pairs


def read_file(source: str, config_type: type[RolloutConfig] = TrainConfig) -> dict[str, Any]:
    """The values of a settings file, by dotted name: a path, or the name of one that ships."""
    path = Path(source).expanduser()
    if not path.is_file() and (SHIPPED / f"{source}.toml").is_file():
        path = SHIPPED / f"{source}.toml"
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        shipped = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.toml")))
        raise SettingsFileError(
            f"The settings file '{source}' could not be read ({error.strerror}): "
            f"give a path to a TOML file, or one that ships: {shipped}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsFileError(f"The settings file {path} is not TOML: {error}.") from error
    return _convert(flatten(tree), f" in {path}", config_type)


@overload
def from_dict(values: Mapping[str, Any]) -> TrainConfig: ...
@overload
def from_dict[Config: RolloutConfig](values: Mapping[str, Any], config_type: type[Config]) -> Config: ...
def from_dict(values: Mapping[str, Any], config_type: type[RolloutConfig] = TrainConfig) -> RolloutConfig:
    """The tree of `to_dict`, or of any nested or dotted mapping; what it leaves out has its default."""
    return build(_convert(flatten(values), config_type=config_type), config_type)


def to_dict(config: RolloutConfig) -> dict[str, Any]:
    """The whole tree as JSON values."""
    tree: dict[str, Any] = json.loads(json.dumps(chz.asdict(config)))
    return tree


@overload
def build(values: Mapping[str, Any]) -> TrainConfig: ...
@overload
def build[Config: RolloutConfig](values: Mapping[str, Any], config_type: type[Config]) -> Config: ...
def build(values: Mapping[str, Any], config_type: type[RolloutConfig] = TrainConfig) -> RolloutConfig:
    """The tree from typed values by dotted name."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        group, _, leaf = name.rpartition(".")
        (tree.setdefault(group, {}) if group else tree)[leaf] = value
    for name, field in chz.chz_fields(config_type).items():
        group_type: Any = field.final_type
        if name in tree and chz.is_chz(group_type):
            tree[name] = group_type(**tree[name])
    return config_type(**tree)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _convert(
    values: Mapping[str, Any], where: str = "", config_type: type[RolloutConfig] = TrainConfig
) -> dict[str, Any]:
    settings = all_settings(config_type)
    converted: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for key, value in _tables(values, settings).items():
        name = ALIASES.get(key, key)
        if name not in settings:
            raise UnknownSettingError(f"There is no setting '{key}'{where}{_did_you_mean(key, settings)}")
        new = _value(settings[name], key, value, where)
        if name in converted and converted[name] != new:
            raise BadValueError(
                f"{given_as[name]}={show_value(converted[name])} and {key}={show_value(new)}{where} "
                "are two names of one setting: give one of them."
            )
        converted[name], given_as[name] = new, key
    return converted


def _tables(values: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The entries of a table whose keys are the user's own, typed or flattened one by one, as one value."""
    gathered: dict[str, Any] = {}
    for key, value in values.items():
        table, _, entry = key.partition(".")
        setting = settings.get(table)
        if entry and setting is not None and is_mapping(setting.type):
            gathered[table] = {**gathered.get(table, {}), entry: value}
        else:
            gathered[key] = value
    return gathered


def _did_you_mean(key: str, settings: Mapping[str, Setting]) -> str:
    known = [*settings, *ALIASES, "config"]
    last = {name.rpartition(".")[2]: name for name in known if "." in name}
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.6) or [
        last[name] for name in difflib.get_close_matches(key, last, n=2, cutoff=0.75)
    ]
    # With many settings there is always a third cousin: only those nearly as close as the closest are named.
    alike = [difflib.SequenceMatcher(None, key, name).ratio() for name in close]
    close = [name for name, ratio in zip(close, alike, strict=True) if ratio >= 0.9 * alike[0]]
    if not close:
        return ": `--help` lists them all."
    return f": did you mean {' or '.join(close)}?"


def _value(setting: Setting, key: str, value: Any, where: str) -> Any:
    try:
        return parse_value(setting.type, value)
    except (ValueError, TypeError):
        raise BadValueError(
            f"{key} is '{show_value(value)}'{where}, which is not {setting.expected}."
        ) from None
