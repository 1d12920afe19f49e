"""The rooms wired together for a replay: the answers of a stored rollout, given again."""

import tempfile
from pathlib import Path
from typing import Any

import chz

from termrl.api.parts import checked_model, rollout_settings
from termrl.config import EvalConfig, RolloutConfig, TrainConfig
from termrl.errors import UserError
from termrl.rollout.replay import ReplayReport, replay
from termrl.rollout.runner import RolloutRunner
from termrl.sandbox.choice import choose_backend, environment_settings, make_ready
from termrl.store import Place, Run
from termrl.tasks import load_harbor_tasks


async def replay_stored(run_path: Path, which: str) -> ReplayReport:
    """Gives the answers of a stored rollout again, in a sandbox like the one it had."""
    with Run.open(run_path) as run:
        settings = run.settings
        config = _rollout_config(run.kind, settings)
        place = _place(which)
        rollout = run.rollouts(place.stage, place.step).get(place)
        limit = run.fact("context_limit") or config.context_limit
    if rollout is None:
        raise UserError(
            f"The run {run_path} has no rollout {which}: `termrl replay {run_path.name}` lists them all."
        )
    sources = (settings.get(key) for key in ("dataset", "eval_dataset", "eval_dataset_families"))
    tasks = (task for source in sources if source for task in load_harbor_tasks(source))
    task = next((task for task in tasks if task.task_name == rollout.task_name), None)
    if task is None:
        raise UserError(f"The task {rollout.task_name} is not in the run's datasets any more.")
    model = checked_model(config)
    backend = choose_backend(config, None)
    make_ready(backend, [task])
    where = environment_settings(backend, [task])
    with tempfile.TemporaryDirectory(prefix="termrl-replay-") as trials:
        longest = max((turn.end for turn in rollout.turns), default=0)
        roomy = limit or longest + config.max_tokens
        runner = RolloutRunner(rollout_settings(config, roomy, Path(trials), where), model.renderer)
        try:
            return await replay(runner, task, rollout, model.tokenizer)
        finally:
            await runner.close()


def _place(which: str) -> Place:
    stage, *numbers = which.rsplit("/", 3)
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        raise UserError(
            f"'{which}' is not a rollout: it is named STAGE/STEP/GROUP/MEMBER, such as train/0/0/0."
        )
    step, group, member = map(int, numbers)
    return Place(stage, step, group, member)


def _rollout_config(kind: str, settings: dict[str, Any]) -> RolloutConfig:
    """The stored settings of a run, those that concern its rollouts."""
    tree = TrainConfig if kind == "train" else EvalConfig
    known = {name: settings[name] for name in chz.chz_fields(RolloutConfig) if name in settings}
    return tree(**known)
