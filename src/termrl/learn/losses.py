"""The losses: those the Tinker SDK names with the settings each takes, and where one's own is found.

A name or a setting that no loss has is refused before anything starts. Whether the server at hand computes a
loss is asked of it with a datum of one token before the first rollout (`Learner.require_loss`).
"""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from termrl.config import TrainConfig
from termrl.errors import UserError

_CLIP = ("clip_low_threshold", "clip_high_threshold")
LOSSES: Mapping[str, tuple[str, ...]] = {
    "importance_sampling": (),
    "ppo": _CLIP,
    "cispo": _CLIP,
    "dro": ("beta",),
    "gspo": _CLIP,
    "stable_reinforce": ("kl_coeff",),
}
"""Each loss that advantages weigh, with the settings that the SDK's servers read."""


class LossSettingError(UserError):
    """A loss that there is none of, or a setting that the chosen one does not take."""


def check_loss(config: TrainConfig) -> None:
    """Refuses a loss or a setting of it by name."""
    if ":" in config.loss_fn:
        find_custom_loss(config.loss_fn)
        if config.loss_fn_config:
            raise LossSettingError(
                f"loss_fn_config is set, but {config.loss_fn} is a function of your own and is not given it: "
                "leave loss_fn_config out."
            )
        return
    if config.loss_fn not in LOSSES:
        raise LossSettingError(
            f"loss_fn is '{config.loss_fn}', which is not {', '.join(LOSSES)} or module:function."
        )
    for name in config.loss_fn_config:
        if name not in LOSSES[config.loss_fn]:
            takers = [loss for loss, settings in LOSSES.items() if name in settings]
            who = f"{' and '.join(takers)} would" if takers else "no loss of the server's does"
            takes = ", ".join(LOSSES[config.loss_fn]) or "none"
            raise LossSettingError(
                f"The loss {config.loss_fn} does not take loss_fn_config.{name} ({who}); it takes {takes}."
            )


def find_custom_loss(name: str) -> Any:
    """The object that `module:name` names; modules in the working directory are found too."""
    module_name, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise LossSettingError(
            f"loss_fn is '{name}', but {error}: it takes a module that Python can import, and a name in it."
        ) from error
    if not callable(found):
        raise LossSettingError(f"loss_fn is '{name}', which is no function but {type(found).__name__}.")
    return found
