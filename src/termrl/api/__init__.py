"""The rooms wired together: a training run and an evaluation, from settings to what they came to.

Everything that can be wrong with the input is found out before a run is made; everything that is started
(the engine, sandboxes) is ended with it. This is what the command line calls and what `from termrl import
train, evaluate` gives.
"""

from termrl.api.evaluation import evaluate
from termrl.api.replaying import replay_stored
from termrl.api.training import dry_run, train

__all__ = ["dry_run", "evaluate", "replay_stored", "train"]
