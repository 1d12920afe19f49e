"""The settings of a training run, and which of them contradict each other."""

from collections.abc import Mapping
from typing import Literal

import chz

from termrl.config.bounds import ContradictionError, above_zero, at_least, below
from termrl.config.rollouts import RolloutConfig


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
    train_unembed: bool = chz.field(
        default=True, doc="whether the adapter is on the matrix that words are chosen with, too"
    )
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
        doc="those that would lag further: train, corrected by ratio; draw anew; or have the learner wait",
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
        at_least(1, self, "lora_rank", "batch_size", "num_substeps", "eval_attempts", "eval_n_tasks")
        at_least(0, self, "max_steps", "eval_every", "save_every", "rolling_save_every", "lr_warmup_steps")
        at_least(1, self, "n_tasks", "n_epochs", "max_tokens_total", "checkpoint_ttl_hours")
        at_least(0, self, "adam_eps", "weight_decay", "grad_clip_norm")
        at_least(0, self, "max_steps_off_policy", "kl_penalty_coef")
        at_least(2, self, "min_group_size")
        below(1, self, "adam_beta1", "adam_beta2", "eval_fraction", "baseline_decay")
        below(1, self, "kl_discount_factor", "curriculum_floor")
        above_zero(self, "learning_rate", "max_minutes", "max_hours", "max_cost", "entropic_beta")
        above_zero(self, "eval_fraction", "temperature")
        at_least(0, self.shaping, *chz.chz_fields(ShapingConfig), prefix="shaping.")
        at_least(1, self.warmup, "n_demonstrations", "epochs", "batch_size", prefix="warmup.")
        above_zero(self.warmup, "learning_rate", prefix="warmup.")

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
