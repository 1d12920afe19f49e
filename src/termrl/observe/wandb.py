"""The figures of each step at Weights & Biases, through its own client.

Asked for by `wandb.enabled` or by naming a project. Without the package or a key the run is refused before it
starts; `WANDB_MODE=offline` needs no key and keeps the figures beside the run.
"""

import importlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from termrl.config import TrainConfig, WandbConfig
from termrl.errors import UserError

KEY = "WANDB_API_KEY"


class WandbError(UserError):
    """W&B was asked for and cannot be used."""


def wants_wandb(config: WandbConfig) -> bool:
    return config.enabled or config.project is not None


def require_wandb(config: WandbConfig) -> None:
    """Refuses what would fail once the run is under way."""
    if not wants_wandb(config):
        return
    if importlib.util.find_spec("wandb") is None:
        raise WandbError(
            "W&B was asked for, but its client is not installed: `pip install 'termrl[wandb]'` brings it."
        )
    offline = os.environ.get("WANDB_MODE") in ("offline", "disabled")
    if not offline and not os.environ.get(KEY) and not _logged_in():
        raise WandbError(
            f"W&B was asked for, but there is no {KEY}: put it into .env, or set WANDB_MODE=offline."
        )


class WandbSink:
    def __init__(self, config: TrainConfig, settings: Mapping[str, Any], run_path: Path) -> None:
        self._run: Any = importlib.import_module("wandb").init(
            entity=config.wandb.entity,
            project=config.wandb.project or "termrl",
            name=config.wandb.run_name or run_path.name,
            id=run_path.name,
            resume="allow",
            dir=str(run_path),
            config=dict(settings),
        )

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(flat_numbers(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def flat_numbers(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested figures by dotted names, numbers only; the table by task stays in the store."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping) and name != "tasks":
            flat |= flat_numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[f"{prefix}{name}"] = value
    return flat


def _logged_in() -> bool:
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    return netrc.is_file() and "wandb" in netrc.read_text(errors="replace")
