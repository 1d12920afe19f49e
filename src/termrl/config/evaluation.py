"""The settings of an evaluation, and which of them contradict each other."""

from collections.abc import Mapping
from typing import Literal

import chz

from termrl.config.bounds import ContradictionError, above_zero, at_least
from termrl.config.rollouts import RolloutConfig


@chz.chz
class EvalConfig(RolloutConfig):
    """All that an evaluation is told."""

    dataset: str = chz.field(
        default="termrl/basics:held_out", doc="tasks to attempt: a path, a registry name or a built-in set"
    )
    benchmarks: tuple[str, ...] | None = chz.field(
        default=None, doc="several datasets, one after the other, each with its own result; none = dataset"
    )
    checkpoint_url: str | None = chz.field(
        default=None,
        doc="weights to evaluate: a tinker:// path, or a RUN for its last; none = the base model",
    )
    model_service: Literal["auto", "engine", "tinker", "litellm"] = chz.field(
        default="auto",
        doc="who serves the model: the embedded engine, Tinker or a compatible server, or litellm "
        "(OpenAI-compatible endpoints too); auto = by model_name, checkpoint_url and base_url",
    )
    agent_kwargs: Mapping[str, float | str] = chz.field(
        default_factory=dict, doc="the agent's own settings, such as agent_kwargs.parser_name=xml"
    )
    attempts: int = chz.field(default=1, doc="attempts at each task")
    task_ids: tuple[str, ...] | None = chz.field(
        default=None, doc="attempt these tasks only, by name; none = all"
    )
    task_indices: str | None = chz.field(
        default=None, doc="attempt the tasks at these places only, counted from 0, such as 84,64 or 0,3-5"
    )
    n_tasks: int | None = chz.field(
        default=None, doc="attempt so many of the tasks, drawn by the seed; none = all"
    )
    n_parallel_envs: int = chz.field(default=4, doc="rollouts at the same time")
    timeout_multiplier: float = chz.field(
        default=1.0, doc="times the time-outs that each task.toml sets (agent, verifier, build)"
    )
    prices: str | None = chz.field(
        default=None, doc="file of prices per model that goes over the one that ships"
    )
    pass_threshold: float | None = chz.field(
        default=None, doc="reward from which a rollout is a PASS; none = the task's full reward"
    )
    retry: Literal["auto", "excluded", "none"] = chz.field(
        default="auto",
        doc="excluded rollouts when the command is given again: auto = run again, at most three times in "
        "all; excluded = run again whatever was tried; none = leave",
    )
    keep_trials: Literal["all", "failed", "none"] = chz.field(
        default="all", doc="which of Harbor's trial directories to keep under the run"
    )
    export: Literal["none", "harbor"] = chz.field(
        default="none", doc="harbor = also write a Harbor job directory, which `harbor view` opens"
    )
    output_path: str | None = chz.field(
        default=None,
        doc="directory for results.json, results.md and rollouts/, or a .json file; none = the run's own",
    )

    @chz.validate
    def _check_evaluation(self) -> None:
        at_least(1, self, "attempts", "n_tasks")
        above_zero(self, "timeout_multiplier", "pass_threshold")
        if self.attempts > 1 and self.temperature == 0 and self.agent not in ("oracle", "nop"):
            raise ContradictionError(
                f"attempts is {self.attempts} and temperature 0: every attempt would be the same answer "
                "again, and pass@k would mean nothing; set temperature above 0, or attempts=1."
            )
        chosen = [name for name in ("task_ids", "task_indices", "n_tasks") if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise ContradictionError(
                f"{' and '.join(chosen)} are different ways to choose tasks: give one of them."
            )
        if self.benchmarks is not None and len(self.benchmarks) > 1 and (self.task_ids or self.task_indices):
            raise ContradictionError(
                f"{chosen[0]} chooses tasks of one dataset, and benchmarks names {len(self.benchmarks)}: "
                "evaluate them one by one."
            )
        if self.export == "harbor" and self.keep_trials != "all":
            raise ContradictionError(
                f"export=harbor needs every trial's directory, and keep_trials is {self.keep_trials}: "
                "set keep_trials=all."
            )
