"""Which run an evaluation is: the same command again goes on with the one it began.

Without a run_name the name is made from the settings that define what is measured, so that the same
command finds its run and another one does not. A run that is named again holds to its own settings, save
for those that cannot change what was measured before.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from termrl.config import EvalConfig
from termrl.errors import UserError
from termrl.evaluate.results import NOT_OF_THE_RESULT
from termrl.settings import to_dict
from termrl.settings.again import settings_again

MAY_CHANGE = NOT_OF_THE_RESULT | {"attempts", "base_url", "pass_threshold"}
"""What an evaluation under way may be told anew; more attempts are added to those that are there."""


class EvaluationChangedError(UserError):
    """A run was named again with settings under which its rollouts would have been others."""


def evaluation_name(config: EvalConfig) -> str:
    """A name by model, dataset and a digest of all that defines the evaluation."""
    defining = {name: value for name, value in to_dict(config).items() if name not in NOT_OF_THE_RESULT}
    digest = hashlib.sha256(json.dumps(defining, sort_keys=True).encode()).hexdigest()[:8]
    who = config.agent if config.agent in ("oracle", "nop") else config.model_name
    return f"eval-{slug(who)}-{slug(config.dataset)}-{digest}"


def go_on(stored: Mapping[str, Any], said: Mapping[str, Any]) -> EvalConfig:
    """The settings to go on with: those stored, with what was said now over them."""
    return settings_again(
        stored,
        said,
        EvalConfig,
        may_change=MAY_CHANGE,
        began="The evaluation was begun",
        refusal=EvaluationChangedError,
    )


def slug(name: str) -> str:
    """A name that a directory can have."""
    return re.sub(r"[^a-z0-9.]+", "-", Path(name).name.lower()).strip("-.")[:40]
