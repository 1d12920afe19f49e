"""The one tree of settings, checked before anything is paid for.

A setting is a field here with its one-line description; that one place makes it a `key=value` on the
command line, a line of `--help`, a key of a settings file and a row of docs/settings.md. Settings that
contradict each other are refused when the tree is made. Reading them is `termrl.settings`.
"""

from collections.abc import Mapping
from typing import Literal

import chz

from termrl.errors import UserError

ALIASES = {
    "tasks_dir": "dataset",
    "dataset_path": "dataset",
    "minitb.dataset": "dataset",
    "minitb.dataset_path": "dataset",
    "task_id": "task_ids",
    "minitb.task_id": "task_ids",
    "groups_per_batch": "batch_size",
    "num_batches": "max_steps",
    "sandbox_concurrency": "n_parallel_envs",
    "sandbox_backend": "environment_type",
    "n_concurrent": "n_parallel_envs",
    "concurrency": "n_parallel_envs",
    "checkpoint_path": "checkpoint_url",
    "load_checkpoint_path": "checkpoint_url",
    "num_epochs": "n_epochs",
    "max_trajectory_tokens": "context_limit",
    "log_path": "run_root",
    "behavior_if_log_dir_exists": "behavior_if_run_exists",
    "output": "output_path",
    "wandb_project": "wandb.project",
    "wandb_name": "wandb.run_name",
    "max_tasks": "n_tasks",
    "warmup": "warmup.enabled",
}
"""Other names by which a setting is known, and the one it has here."""


class ContradictionError(UserError):
    """Settings that cannot hold together, or a value outside of what makes sense."""


@chz.chz
class WarmupConfig:
    """Supervised learning on the tasks' own reference solutions, before reinforcement learning."""

    enabled: bool = chz.field(
        default=False, doc="learn the agent's format from reference solutions first; off unless asked for"
    )
    families: tuple[str, ...] | None = chz.field(
        default=None, doc="task families whose solutions are shown, separated by commas; none = all"
    )
    n_demonstrations: int = chz.field(default=64, doc="demonstrations made from reference solutions")
    epochs: int = chz.field(default=1, doc="passes over the demonstrations")
    learning_rate: float = chz.field(default=1e-3, doc="learning rate of the warm-up")
    batch_size: int = chz.field(default=8, doc="demonstrations in an optimizer update")


@chz.chz
class ShapingConfig:
    """What is taken off the verifier's reward before rollouts are compared; the reward itself stays."""

    turn_cost: float = chz.field(default=0.0, doc="reward that each model call costs")
    token_cost: float = chz.field(default=0.0, doc="reward that each sampled token costs")
    format_penalty: float = chz.field(
        default=0.0, doc="reward that a rollout costs in which no answer could be parsed"
    )
    context_exhausted_penalty: float = chz.field(default=0.0, doc="reward that running out of context costs")


@chz.chz
class WandbConfig:
    """The metrics at Weights & Biases too."""

    enabled: bool = chz.field(
        default=False, doc="send each step's metrics to W&B; on where a project is named"
    )
    entity: str | None = chz.field(default=None, doc="user or team at W&B; none = your own")
    project: str | None = chz.field(default=None, doc="project at W&B")
    run_name: str | None = chz.field(default=None, doc="name of the run at W&B; none = run_name")


@chz.chz
class RolloutConfig:
    """What every rollout is told, in training and in evaluation: the model, the agent, the sandbox."""

    run_name: str | None = chz.field(default=None, doc="name of the run; none = made from the date")
    run_root: str = chz.field(default="./runs", doc="directory that holds the runs")
    behavior_if_run_exists: Literal["resume", "new", "ask", "error"] = chz.field(
        default="resume", doc="when the run exists: go on with it, take a new name, ask, or refuse"
    )
    seed: int = chz.field(default=0, doc="seed of everything that is drawn at random")
    log_level: Literal["debug", "info", "warning", "error"] = chz.field(
        default="warning", doc="how much the libraries underneath may log"
    )
    model_name: str = chz.field(
        default="termrl/tiny", doc="model to train: a name the server knows, or a model directory"
    )
    base_url: str | None = chz.field(
        default=None, doc="Tinker or a compatible server; none = the embedded engine on this machine"
    )
    context_limit: int | None = chz.field(
        default=None, doc="tokens of context to use at most; none = what the model has"
    )
    renderer: str = chz.field(
        default="auto", doc="how messages become tokens: auto = by the model's name, or a family's name"
    )
    keep_thinking: bool | None = chz.field(
        default=None,
        doc="keep earlier thoughts in the prompt; none = yes in training, as the family has it in evaluation",
    )
    agent: str = chz.field(
        default="terminus-2",
        doc="loop that turns answers into actions: terminus-2, bash, a Harbor agent's name, or module:Class",
    )
    early_return: bool | None = chz.field(
        default=None,
        doc="end a command's wait once it is done and the screen still; none = in training only",
    )
    gateway_url: str | None = chz.field(
        default=None, doc="address that leads to gateway_port from where black-box agents run"
    )
    gateway_port: int = chz.field(
        default=0, doc="port on loopback that black-box agents reach the policy by; 0 = any that is free"
    )
    gateway_tunnel: str | None = chz.field(
        default=None, doc="your program that opens a tunnel to {url} and prints its address"
    )
    reward: str | None = chz.field(
        default=None, doc="verifier's reward that counts, or a sum such as 0.7*tests+0.3*style; none = reward"
    )
    reward_fn: str | None = chz.field(
        default=None, doc="grader of your own, module:function, asked with the rollout and its sandbox"
    )
    environment_type: str = chz.field(
        default="local", doc="where sandboxes run: local, or a Harbor environment (docker, daytona, ...)"
    )
    environment_kwargs: tuple[str, ...] | None = chz.field(
        default=None, doc="what the sandbox's backend is told besides, as NAME=VALUE separated by commas"
    )
    base_images: tuple[str, ...] | None = chz.field(
        default=None, doc="local images to use for others, as IMAGE=IMAGE separated by commas"
    )
    sandbox_timeout: int | None = chz.field(
        default=None, doc="seconds a sandbox lives at most; none = what its task's time-outs come to"
    )
    snapshots: bool = chz.field(
        default=True, doc="start sandboxes from snapshots where `termrl snapshot create` made them"
    )
    prewarm: int = chz.field(default=0, doc="sandboxes to keep booted ahead of the demand")
    n_parallel_envs: int = chz.field(default=16, doc="rollouts at the same time")
    max_turns: int = chz.field(default=50, doc="model calls a rollout may make")
    max_tokens: int = chz.field(default=1024, doc="tokens an answer may have")
    temperature: float = chz.field(default=1.0, doc="sampling temperature")
    enable_summarize: bool = chz.field(
        default=True, doc="let the agent summarize its history when the context runs out"
    )
    proactive_summarization_threshold: int | None = chz.field(
        default=None, doc="summarize when fewer tokens of context are left; none = only when they run out"
    )
    on_bad_task: Literal["error", "skip"] = chz.field(
        default="error", doc="what to do about a task that cannot be used: stop, or leave it out and say so"
    )
    quarantine: str = chz.field(
        default="auto",
        doc="tasks to leave out: auto = what `termrl tasks check` found unfit in it, a file, or none",
    )
    keep_trials: Literal["all", "failed", "none"] = chz.field(
        default="none", doc="which of Harbor's trial directories to keep under the run"
    )

    @chz.validate
    def _check_rollouts(self) -> None:
        _at_least(1, self, "n_parallel_envs", "max_turns", "max_tokens", "context_limit", "sandbox_timeout")
        _at_least(0, self, "seed", "prewarm", "temperature")
        _above_zero(self, "proactive_summarization_threshold")
        if self.context_limit is not None and self.max_tokens >= self.context_limit:
            raise ContradictionError(
                f"max_tokens is {self.max_tokens} and context_limit {self.context_limit}: "
                "an answer must leave room for its prompt; lower max_tokens."
            )
        if self.proactive_summarization_threshold is not None and not self.enable_summarize:
            raise ContradictionError(
                "proactive_summarization_threshold is set but enable_summarize is off: "
                "turn it on, or leave the threshold out."
            )
        if self.gateway_url is not None and self.gateway_port == 0:
            raise ContradictionError(
                "gateway_url is set but gateway_port is not: say which port on this machine it leads to."
            )
        if self.gateway_url is not None and self.gateway_tunnel is not None:
            raise ContradictionError("gateway_url and gateway_tunnel say the same twice: leave one out.")
        if self.gateway_url is not None and not self.gateway_url.startswith(("http://", "https://")):
            raise ContradictionError(
                f"gateway_url is '{self.gateway_url}': it must begin with http:// or https://."
            )
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ContradictionError(
                f"base_url is '{self.base_url}': it must begin with http:// or https://."
            )
        if self.run_name is not None and (not self.run_name.strip(". ") or "/" in self.run_name):
            raise ContradictionError(
                f"run_name is '{self.run_name}': a name cannot be empty, be dots, or hold a '/'; "
                "the directory it is made in is run_root."
            )


@chz.chz
class TrainConfig(RolloutConfig):
    """All that a training run is told."""

    dataset: str = chz.field(
        default="termrl/basics:train", doc="tasks to train on: a path, a registry name or a built-in set"
    )
    task_ids: tuple[str, ...] | None = chz.field(
        default=None, doc="train on these tasks only, by name; none = all"
    )
    task_indices: str | None = chz.field(
        default=None, doc="train on the tasks at these places only, counted from 0, such as 0-9,12"
    )
    n_tasks: int | None = chz.field(default=None, doc="train on so many of the tasks, drawn by the seed")
    task_tags: tuple[str, ...] | None = chz.field(
        default=None, doc="train on tasks with one of these tags or categories only"
    )
    task_difficulty: tuple[str, ...] | None = chz.field(
        default=None, doc="train on tasks of these difficulties only, as their task.toml has it"
    )
    curriculum: Literal["off", "pass_rate"] = chz.field(
        default="off", doc="off = shuffled epochs; pass_rate = favour tasks neither always nor never solved"
    )
    curriculum_floor: float = chz.field(
        default=0.1, doc="share of a curriculum's groups that are drawn from all tasks alike"
    )
    eval_dataset: str | None = chz.field(
        default="termrl/basics:held_out", doc="held-out tasks that training never sees; none = no evaluation"
    )
    eval_fraction: float | None = chz.field(
        default=None, doc="hold out this share of the dataset's tasks, drawn by the seed, as eval_dataset"
    )
    eval_tasks_file: str | None = chz.field(
        default=None, doc="hold out the tasks that this file names, one a line, as eval_dataset"
    )
    eval_dataset_families: str | None = chz.field(
        default="termrl/basics:held_out_families", doc="tasks of families that training never sees"
    )
    eval_base: bool = chz.field(default=True, doc="evaluate the base model before the first step")
    eval_every: int = chz.field(default=0, doc="evaluate every so many steps; 0 = before and after only")
    eval_attempts: int = chz.field(default=1, doc="attempts at each held-out task")
    eval_n_tasks: int | None = chz.field(default=None, doc="evaluate on the first so many; none = all")

    lora_rank: int = chz.field(default=32, doc="rank of the LoRA adapter that is trained")
    batch_size: int = chz.field(default=8, doc="groups, so tasks, in a step")
    group_size: int = chz.field(default=8, doc="rollouts of a task that are compared with each other")
    min_group_size: int | None = chz.field(
        default=None, doc="scored rollouts that a group needs to be used; none = half of it, at least 2"
    )
    max_steps: int | None = chz.field(
        default=None, doc="steps of reinforcement learning at most; none = as n_epochs says, else 100"
    )
    n_epochs: int | None = chz.field(
        default=None,
        doc="passes over the tasks, if max_steps does not end it before; none = as max_steps says",
    )
    max_minutes: float | None = chz.field(
        default=None, doc="stop reinforcement learning after so many minutes, resumably; none = no limit"
    )
    max_hours: float | None = chz.field(
        default=None, doc="stop the whole run after so many hours, resumably, with exit code 3"
    )
    max_cost: float | None = chz.field(
        default=None, doc="stop when tokens and sandboxes have cost so many dollars, resumably, exit code 3"
    )
    max_tokens_total: int | None = chz.field(
        default=None, doc="stop after so many tokens (prefill, sample, train), resumably, exit code 3"
    )
    prices: str | None = chz.field(
        default=None, doc="file of prices per model and sandbox that goes over the one that ships"
    )
    dry_run: bool = chz.field(
        default=False, doc="check everything and estimate a step's tokens, cost and time; spend nothing"
    )
    max_steps_off_policy: int = chz.field(
        default=0, doc="versions that rollouts may lag behind the weights they train; 0 = on-policy"
    )
    stale_rollouts: Literal["train", "requeue", "wait"] = chz.field(
        default="train",
        doc="rollouts that would lag further: train, corrected by the loss's ratio; draw anew; or let the "
        "learner wait for them",
    )
    partial_rollouts: bool = chz.field(
        default=False, doc="rollouts under way go on with new weights as soon as there are any"
    )
    stream_groups: bool | None = chz.field(
        default=None, doc="train each group as soon as it is whole; none = when max_steps_off_policy > 0"
    )
    num_substeps: int = chz.field(default=1, doc="optimizer updates in a step")
    learning_rate: float = chz.field(default=1e-4, doc="learning rate of reinforcement learning")
    lr_schedule: Literal["constant", "linear", "cosine"] = chz.field(
        default="constant", doc="how the learning rate falls until max_steps; linear and cosine end at zero"
    )
    lr_warmup_steps: int = chz.field(
        default=0, doc="steps in which the learning rate rises to its full height"
    )
    adam_beta1: float = chz.field(
        default=0.9, doc="how much of the gradient's mean Adam keeps from update to update"
    )
    adam_beta2: float = chz.field(default=0.95, doc="the same of its square")
    adam_eps: float = chz.field(default=1e-8, doc="what Adam adds to the gradient's root mean square")
    weight_decay: float = chz.field(
        default=0.0, doc="how much weights shrink in an update, times the learning rate"
    )
    grad_clip_norm: float = chz.field(default=0.0, doc="largest norm a gradient may have; 0 = any")
    loss_fn: str = chz.field(
        default="importance_sampling", doc="loss that the advantages weigh, or module:function for your own"
    )
    loss_fn_config: Mapping[str, float | str] = chz.field(
        default_factory=dict, doc="settings of the loss, such as loss_fn_config.clip_high_threshold=1.28"
    )
    loss_normalization: Literal["rollout", "token"] = chz.field(
        default="rollout", doc="what weighs the same in a batch: every rollout, or every sampled token"
    )
    advantage: Literal["centred", "grpo", "rloo", "rloo_std", "entropic", "max_reward", "reinforce"] = (
        chz.field(default="centred", doc="what rewards are compared with: docs/losses.md has the formulas")
    )
    entropic_beta: float = chz.field(default=2.0, doc="how steeply advantage=entropic prefers high rewards")
    baseline_decay: float = chz.field(
        default=0.9, doc="how much of its running baseline advantage=reinforce keeps from step to step"
    )
    kl_penalty_coef: float = chz.field(
        default=0.0, doc="weight of the penalty on each token's KL to a reference; 0 = none"
    )
    kl_discount_factor: float = chz.field(
        default=0.0, doc="share of a token's penalty that the token before it bears too"
    )
    kl_reference: str | None = chz.field(
        default=None, doc="weights to stay near: a tinker:// sampler path; none = the base model"
    )
    normalize_advantages_by_std: bool = chz.field(
        default=False, doc="divide advantages by their group's standard deviation"
    )
    remove_constant_reward_groups: bool = chz.field(
        default=True, doc="leave out groups whose rollouts all have the same reward: nothing to learn there"
    )
    shuffle_rewards: bool = chz.field(
        default=False, doc="control experiment: permute rewards within each group"
    )
    save_every: int = chz.field(default=10, doc="keep a checkpoint every so many steps; 0 = the last only")
    rolling_save_every: int = chz.field(
        default=0, doc="also save every so many steps what the next such checkpoint replaces; 0 = never"
    )
    checkpoint_ttl_hours: float | None = chz.field(
        default=None, doc="hours the server keeps checkpoints other than the last; none = for ever"
    )
    checkpoint_url: str | None = chz.field(
        default=None, doc="weights to begin with: a tinker:// path of a saved state; none = a new adapter"
    )

    shaping: ShapingConfig = chz.field(default_factory=ShapingConfig, doc="reward shaping")
    wandb: WandbConfig = chz.field(default_factory=WandbConfig, doc="Weights & Biases")
    warmup: WarmupConfig = chz.field(default_factory=WarmupConfig, doc="supervised warm-up")

    @chz.validate
    def _check_ranges(self) -> None:
        _at_least(1, self, "lora_rank", "batch_size", "num_substeps", "eval_attempts", "eval_n_tasks")
        _at_least(0, self, "max_steps", "eval_every", "save_every", "rolling_save_every", "lr_warmup_steps")
        _at_least(1, self, "n_tasks", "n_epochs", "max_tokens_total", "checkpoint_ttl_hours")
        _at_least(0, self, "adam_eps", "weight_decay", "grad_clip_norm")
        _at_least(0, self, "max_steps_off_policy", "kl_penalty_coef")
        _at_least(2, self, "min_group_size")
        _below(1, self, "adam_beta1", "adam_beta2", "eval_fraction", "baseline_decay")
        _below(1, self, "kl_discount_factor", "curriculum_floor")
        _above_zero(self, "learning_rate", "max_minutes", "max_hours", "max_cost", "entropic_beta")
        _above_zero(self, "eval_fraction", "temperature")
        _at_least(0, self.shaping, *chz.chz_fields(ShapingConfig), prefix="shaping.")
        _at_least(1, self.warmup, "n_demonstrations", "epochs", "batch_size", prefix="warmup.")
        _above_zero(self.warmup, "learning_rate", prefix="warmup.")

    @chz.validate
    def _check_groups(self) -> None:
        if self.max_steps != 0 and self.group_size < 2 and self.advantage != "reinforce":
            raise ContradictionError(
                f"group_size is {self.group_size}: rollouts are compared within their group, "
                "so it takes 2 or more (or advantage=reinforce, which compares them with those before)."
            )
        if self.min_group_size is not None and self.min_group_size > self.group_size:
            raise ContradictionError(
                f"min_group_size is {self.min_group_size} and group_size {self.group_size}: "
                "no group could ever be used; lower min_group_size."
            )
        if self.num_substeps > self.batch_size * self.group_size:
            raise ContradictionError(
                f"num_substeps is {self.num_substeps} but a step has only "
                f"{self.batch_size * self.group_size} rollouts to share among them: lower it."
            )
        if self.stream_groups and self.batch_size % self.num_substeps:
            raise ContradictionError(
                f"stream_groups trains whole groups, and batch_size={self.batch_size} of them do not share "
                f"evenly among num_substeps={self.num_substeps}: change one of the three."
            )
        if self.normalize_advantages_by_std and self.advantage not in ("centred", "grpo", "rloo", "rloo_std"):
            raise ContradictionError(
                f"normalize_advantages_by_std has no meaning with advantage={self.advantage}: it goes with "
                "centred and rloo; leave it out."
            )

    @chz.validate
    def _check_pipeline(self) -> None:
        if self.partial_rollouts and self.max_steps_off_policy == 0:
            raise ContradictionError(
                "partial_rollouts is on but max_steps_off_policy is 0: on-policy rollouts end before the "
                "weights change; set max_steps_off_policy=1 or more, or leave partial_rollouts out."
            )
        if self.stale_rollouts != "train" and self.max_steps_off_policy == 0:
            raise ContradictionError(
                f"stale_rollouts={self.stale_rollouts} has no meaning with max_steps_off_policy=0, where "
                "none is stale."
            )
        if self.kl_penalty_coef == 0 and (self.kl_reference is not None or self.kl_discount_factor):
            raise ContradictionError(
                "kl_reference and kl_discount_factor do nothing while kl_penalty_coef is 0: set it."
            )

    @chz.validate
    def _check_held_out(self) -> None:
        if self.eval_fraction is not None and self.eval_tasks_file is not None:
            raise ContradictionError(
                "eval_fraction and eval_tasks_file are two ways to hold out tasks: give one of them."
            )
        own = self.eval_fraction is not None or self.eval_tasks_file is not None
        if self.eval_every and self.eval_dataset is None and not own:
            raise ContradictionError(
                "eval_every is set but eval_dataset is none: name the held-out tasks, or set eval_every=0."
            )


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
        _at_least(1, self, "attempts", "n_tasks")
        _above_zero(self, "timeout_multiplier", "pass_threshold")
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


def _at_least(least: float, config: object, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and value < least:
            raise ContradictionError(f"{prefix}{name} is {value}: it must be {least} or more.")


def _below(bound: float, config: object, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not 0 <= value < bound:
            raise ContradictionError(f"{prefix}{name} is {value}: it must be from 0 to below {bound}.")


def _above_zero(config: object, *names: str, prefix: str = "") -> None:
    for name in names:
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ContradictionError(f"{prefix}{name} is {value}: it must be above 0.")
