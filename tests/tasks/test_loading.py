"""Loading tasks from directories, and the sentence for each thing that can be wrong with them."""

from pathlib import Path

import pytest

from termrl.errors import UserError
from termrl.tasks import HarborTask, load_harbor_tasks, reference_commands, validate_task_dir
from termrl.tasks.errors import (
    DuplicateTaskError,
    InvalidTaskError,
    MalformedTaskConfigError,
    MissingEnvironmentError,
    MissingInstructionError,
    MissingSolutionError,
    MissingTaskConfigError,
    MissingTestsError,
    NoTasksError,
    UnknownDatasetError,
)

CONFIG = '[metadata]\nfamily = "greeting"\n\n[environment]\nnetwork_mode = "no-network"\n'
SOLUTION = """\
#!/bin/bash
set -euo pipefail
# Greets.

cd /app
echo hello > out
cat out
"""


def make_task(task_dir: Path, config: str = CONFIG) -> Path:
    for path, content in {
        "task.toml": config,
        "instruction.md": "Say hello",
        "environment/Dockerfile": "FROM termrl/host\n",
        "solution/solve.sh": SOLUTION,
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    }.items():
        (task_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (task_dir / path).write_text(content)
    return task_dir


def the_sentence(error: pytest.ExceptionInfo[UserError]) -> str:
    """The message, after checking that it is one a command line can print as it is."""
    message = str(error.value)
    assert error.value.exit_code == 2
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_one_task_directory_is_a_source(tmp_path: Path) -> None:
    (task,) = load_harbor_tasks(make_task(tmp_path / "hello"))
    assert (task.task_name, task.instruction, task.task_dir) == ("hello", "Say hello", tmp_path / "hello")
    assert task.config.metadata["family"] == "greeting"


def test_a_tree_of_any_depth_is_a_source_and_its_order_is_that_of_the_paths(tmp_path: Path) -> None:
    for path in ("b", "a/z/deep/er", "a/c", ".git/hidden"):
        make_task(tmp_path / path)
    assert [task.task_name for task in load_harbor_tasks(str(tmp_path))] == ["c", "er", "b"]


def test_what_lies_inside_a_task_is_not_searched_for_tasks(tmp_path: Path) -> None:
    make_task(make_task(tmp_path / "outer") / "environment" / "inner")
    assert [task.task_name for task in load_harbor_tasks(tmp_path)] == ["outer"]


def test_links_are_followed_and_a_circle_ends(tmp_path: Path) -> None:
    make_task(tmp_path / "elsewhere" / "hello")
    (tmp_path / "tasks" / "loop").mkdir(parents=True)
    (tmp_path / "tasks" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "tasks" / "loop" / "up").symlink_to(tmp_path / "tasks")
    assert [task.task_name for task in load_harbor_tasks(tmp_path / "tasks")] == ["hello"]


def test_a_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make_task(tmp_path / "mine" / "hello")
    assert len(load_harbor_tasks("~/mine")) == 1


def test_a_task_is_named_as_harbor_names_it(tmp_path: Path) -> None:
    make_task(tmp_path / "digest", config='[task]\nname = "someone/hello"\n')
    assert load_harbor_tasks(tmp_path)[0].task_name == "someone/hello"


def test_a_task_of_several_steps_has_its_instructions_and_tests_there(tmp_path: Path) -> None:
    task_dir = make_task(tmp_path / "long", config='[[steps]]\nname = "one"\n')
    (task_dir / "instruction.md").unlink()
    (task_dir / "steps" / "one").mkdir(parents=True)
    with pytest.raises(MissingInstructionError, match=r"has no steps/one/instruction\.md"):
        load_harbor_tasks(task_dir)
    (task_dir / "steps" / "one" / "instruction.md").write_text("Begin")
    validate_task_dir(task_dir)
    assert load_harbor_tasks(task_dir)[0].instruction == ""


def test_a_task_directory_without_tests_is_refused(tmp_path: Path) -> None:
    task_dir = make_task(tmp_path / "hello")
    (task_dir / "tests" / "test.sh").unlink()
    with pytest.raises(MissingTestsError) as error:
        load_harbor_tasks(tmp_path)
    assert the_sentence(error) == (
        f"The task {task_dir} has no tests/test.sh, so nothing can grade it; "
        "add one that writes /logs/verifier/reward.txt."
    )


def test_a_task_directory_without_an_instruction_is_refused(tmp_path: Path) -> None:
    (make_task(tmp_path / "hello") / "instruction.md").unlink()
    with pytest.raises(MissingInstructionError) as error:
        load_harbor_tasks(tmp_path)
    assert "has no instruction.md" in the_sentence(error)


def test_a_task_directory_without_an_environment_is_refused_unless_it_names_an_image(tmp_path: Path) -> None:
    task_dir = make_task(tmp_path / "hello")
    (task_dir / "environment" / "Dockerfile").unlink()
    (task_dir / "environment").rmdir()
    with pytest.raises(MissingEnvironmentError) as error:
        load_harbor_tasks(tmp_path)
    assert "does not say what its sandbox starts from" in the_sentence(error)
    (task_dir / "task.toml").write_text('[environment]\ndocker_image = "debian:12"\n')
    assert len(load_harbor_tasks(tmp_path)) == 1


def test_broken_toml_is_refused_with_its_line(tmp_path: Path) -> None:
    task_dir = make_task(tmp_path / "hello", config="[metadata]\nfamily = \n")
    with pytest.raises(MalformedTaskConfigError) as error:
        load_harbor_tasks(tmp_path)
    assert the_sentence(error) == (
        f"{task_dir / 'task.toml'} is not valid TOML: Invalid value (at line 2, column 10)."
    )


def test_a_value_harbor_does_not_know_is_refused_with_its_line_and_reason(tmp_path: Path) -> None:
    task_dir = make_task(tmp_path / "hello", config='[agent]\n\n[environment]\nnetwork_mode = "wifi"\n')
    with pytest.raises(MalformedTaskConfigError) as error:
        load_harbor_tasks(tmp_path)
    message = the_sentence(error)
    assert message.startswith(f"{task_dir / 'task.toml'}, line 4, is not a valid task.toml: ")
    assert "environment.network_mode: Input should be 'no-network', 'public' or 'allowlist'" in message


def test_a_config_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (make_task(tmp_path / "hello") / "task.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(MalformedTaskConfigError) as error:
        load_harbor_tasks(tmp_path)
    assert "is not UTF-8 text" in the_sentence(error)


def test_a_task_without_its_config_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    make_task(tmp_path / "whole")
    (make_task(tmp_path / "hello") / "task.toml").unlink()
    with pytest.raises(MissingTaskConfigError) as error:
        load_harbor_tasks(tmp_path)
    assert f"{tmp_path / 'hello'} looks like a task but has no task.toml" in the_sentence(error)


def test_an_unknown_dataset_is_refused_with_the_nearest_name_and_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownDatasetError) as error:
        load_harbor_tasks("termrl/basics:trian")
    message = the_sentence(error)
    assert "did you mean termrl/basics:train?" in message
    assert f"no directory {tmp_path / 'termrl/basics:trian'}" in message
    assert "termrl/basics:held_out_families" in message


def test_the_file_of_a_task_is_not_a_source(tmp_path: Path) -> None:
    with pytest.raises(UnknownDatasetError) as error:
        load_harbor_tasks(make_task(tmp_path / "hello") / "task.toml")
    assert "name its directory" in the_sentence(error)


def test_a_directory_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoTasksError) as error:
        load_harbor_tasks(tmp_path)
    assert f"There is no task in {tmp_path}" in the_sentence(error)


def test_two_tasks_of_one_name_are_refused(tmp_path: Path) -> None:
    first, second = make_task(tmp_path / "a" / "hello"), make_task(tmp_path / "b" / "hello")
    with pytest.raises(DuplicateTaskError) as error:
        load_harbor_tasks(tmp_path)
    assert the_sentence(error) == (
        f"Two tasks are named hello, {first} and {second}; "
        "rename one of them, or name the dataset that is meant."
    )


def test_validation_finds_what_harbor_would_refuse_when_the_trial_starts(tmp_path: Path) -> None:
    task_dir = make_task(tmp_path / "hello")
    validate_task_dir(task_dir)
    (task_dir / "tests" / "loop").symlink_to("loop")
    with pytest.raises(InvalidTaskError) as error:
        validate_task_dir(task_dir)
    assert "Harbor refuses the task" in the_sentence(error)


def test_reference_commands_are_what_a_person_would_type(tmp_path: Path) -> None:
    (task,) = load_harbor_tasks(make_task(tmp_path / "hello"))
    assert reference_commands(task) == ["echo hello > out", "cat out"]


@pytest.mark.parametrize("script", [None, "#!/bin/bash\nset -e\n"])
def test_a_task_without_a_solution_is_named_when_one_is_asked_for(tmp_path: Path, script: str | None) -> None:
    (task,) = load_harbor_tasks(make_task(tmp_path / "hello"))
    solve = task.task_dir / "solution" / "solve.sh"
    if script is None:
        solve.unlink()
    else:
        solve.write_text(script)
    with pytest.raises(MissingSolutionError) as error:
        reference_commands(task)
    assert "task hello" in the_sentence(error)


def test_a_task_can_be_a_key(tmp_path: Path) -> None:
    (task,) = load_harbor_tasks(make_task(tmp_path / "hello"))
    assert {task: 1}[HarborTask("hello", "Say hello", tmp_path / "hello", task.config)] == 1
