"""Every command of docs/coming-from.md: theirs, by their own names, and ours come to the same settings."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from termrl.config import ALIASES, EvalConfig, TrainConfig
from termrl.settings import all_settings, build, read_arguments

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"
BLOCK = re.compile(r"```sh (theirs|ours)\n(.*?)```", re.DOTALL)
PROGRAMS = ("python -m src.train", "python tinking/trainer.py", "rllm eval", "minitb run", "tb run")
SETTINGS_FROM_THE_ENVIRONMENT = {"RLLM_MODAL_SANDBOX_TIMEOUT_S": "sandbox_timeout"}
OTHER_VALUES = {"terminus2": "terminus-2", "terminus-tinker": "terminus-2"}
COOKBOOK_TASKS = "terminal-bench@2.0"


def pairs() -> list[tuple[str, str]]:
    blocks = BLOCK.findall(PAGE.read_text())
    assert [who for who, _ in blocks] == ["theirs", "ours"] * (len(blocks) // 2)
    commands = [command.replace("\\\n", " ").strip() for _, command in blocks]
    return list(zip(commands[::2], commands[1::2], strict=True))


def settings_of_ours(command: str) -> Any:
    program, kind, *arguments = shlex.split(command)
    assert program == "termrl"
    config_type = {"train": TrainConfig, "eval": EvalConfig}[kind]
    return build(read_arguments(arguments, config_type), config_type)


def settings_of_theirs(command: str, config_type: Any) -> Any:
    """Their words as arguments: only the program, positions and values are translated, no name is."""
    arguments: list[str] = []
    words = shlex.split(command)
    while "=" in words[0]:
        name, value = words.pop(0).split("=")
        arguments.append(f"{SETTINGS_FROM_THE_ENVIRONMENT[name]}={value}")
    text = shlex.join(words)
    if text.startswith("uv run python tinker_cookbook/"):
        words = words[4:]
        arguments.append(f"dataset={COOKBOOK_TASKS}")
    else:
        program = next(program for program in PROGRAMS if text.startswith(program))
        words = words[len(program.split()) :]
    if text.startswith("rllm eval"):
        arguments.append(f"dataset={words.pop(0)}")
    for word in words:
        if word != "--agent-kwarg":
            word = OTHER_VALUES.get(word, word)
            arguments.append(re.sub(r"(bench-core)==", r"\1@", word))
    return build(read_arguments(arguments, config_type), config_type)


@pytest.mark.parametrize(("theirs", "ours"), pairs())
def test_their_command_and_ours_come_to_the_same_settings(theirs: str, ours: str) -> None:
    expected = settings_of_ours(ours)
    assert settings_of_theirs(theirs, type(expected)) == expected


def test_each_of_the_four_systems_has_its_commands() -> None:
    text = " ".join(theirs for theirs, _ in pairs())
    for program in ("harbor_rl/scripts/train", "harbor_rl/scripts/eval", *PROGRAMS):
        assert program in text


KNOWN_NAMES = [
    "model_name",
    "tasks_dir",
    "learning_rate",
    "batch_size",
    "groups_per_batch",
    "group_size",
    "n_parallel_envs",
    "sandbox_concurrency",
    "max_tokens",
    "temperature",
    "context_limit",
    "proactive_summarization_threshold",
    "enable_summarize",
    "n_epochs",
    "max_steps",
    "num_batches",
    "num_substeps",
    "remove_constant_reward_groups",
    "normalize_advantages_by_std",
    "loss_fn",
    "environment_type",
    "sandbox_backend",
    "lora_rank",
    "max_turns",
    "kl_penalty_coef",
    "max_steps_off_policy",
    "save_every",
    "eval_every",
    "wandb_project",
    "wandb_name",
    "wandb.run_name",
    "wandb.enabled",
    "sandbox_timeout",
    "checkpoint_url",
    "checkpoint_path",
    "task_indices",
    "task_ids",
    "task_id",
    "minitb.task_id",
    "dataset",
    "minitb.dataset",
    "dataset_path",
    "minitb.dataset_path",
    "log_level",
]


@pytest.mark.parametrize("name", KNOWN_NAMES)
def test_every_name_that_users_know_is_a_setting_of_training(name: str) -> None:
    assert ALIASES.get(name, name) in all_settings(TrainConfig)


@pytest.mark.parametrize("name", ["benchmarks", "attempts", "output_path", "checkpoint_url", "task_ids"])
def test_every_name_that_users_know_is_a_setting_of_evaluation(name: str) -> None:
    assert ALIASES.get(name, name) in all_settings(EvalConfig)
