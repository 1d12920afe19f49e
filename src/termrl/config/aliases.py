"""The names that other systems have for settings of this one."""

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
