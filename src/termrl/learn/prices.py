"""What tokens and sandboxes cost, read from a file that users can edit.

`prices.toml` ships with what is free; a file named by `prices=` goes over it entry by entry. The embedded
engine costs nothing whatever the model. A limit in money needs a price for all that is used, and says which
one is missing.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from termrl.config import RolloutConfig, TrainConfig
from termrl.errors import UserError

SHIPPED = Path(__file__).with_name("prices.toml")
KINDS = ("prefill", "sample", "train")


class PriceError(UserError):
    """A price that is needed is missing, or the file of prices is not one."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per million tokens, and per hour of a sandbox; None where nobody said."""

    prefill: float | None = None
    sample: float | None = None
    train: float | None = None
    sandbox_hour: float | None = None

    @property
    def known(self) -> bool:
        return None not in (self.prefill, self.sample, self.train, self.sandbox_hour)


def model_prices(model_name: str, own: str | None) -> Prices:
    """The prices of a model's tokens, as far as they are known; sandboxes are not priced."""
    models, _ = _tables(own)
    known = models.get(model_name, {})
    return Prices(**{kind: known.get(kind) for kind in KINDS})


def read_prices(config: TrainConfig) -> Prices:
    """The prices of the run's model and sandboxes; refuses a limit in money that could not be kept."""
    models, sandboxes = _tables(config.prices)
    model = dict.fromkeys(KINDS, 0.0) if config.base_url is None else models.get(config.model_name, {})
    prices = Prices(
        **{kind: model.get(kind) for kind in KINDS}, sandbox_hour=sandboxes.get(config.environment_type)
    )
    if config.max_cost is not None and not prices.known:
        raise PriceError(
            f"max_cost is set, but {_missing(prices, config)}: add it to a file and name it by prices=."
        )
    return prices


def _tables(own: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ships, with the user's own over it."""
    models, sandboxes = _read(SHIPPED)
    if own is not None:
        own_models, own_sandboxes = _read(Path(own).expanduser())
        models, sandboxes = models | own_models, sandboxes | own_sandboxes
    return models, sandboxes


def _missing(prices: Prices, config: RolloutConfig) -> str:
    if prices.sandbox_hour is None:
        return f"there is no price for an hour of a sandbox of {config.environment_type}"
    return f"there is no price for {config.model_name} (prefill, sample and train)"


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise PriceError(f"The prices in {path} could not be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PriceError(f"The prices in {path} are not TOML: {error}.") from error
    models, sandboxes = tree.get("models", {}), tree.get("sandboxes", {})
    for name, prices in models.items():
        if (
            not isinstance(prices, dict)
            or set(prices) != set(KINDS)
            or not all(map(_is_price, prices.values()))
        ):
            raise PriceError(
                f"{path}: the model '{name}' needs {', '.join(KINDS)}, each a price of 0 or more."
            )
    for name, price in sandboxes.items():
        if not _is_price(price):
            raise PriceError(
                f"{path}: the sandbox '{name}' needs a price per hour of 0 or more, not {price!r}."
            )
    return models, sandboxes


def _is_price(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
