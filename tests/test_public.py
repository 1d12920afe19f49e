import subprocess
import sys


def test_the_public_face_is_what_it_says() -> None:
    from termrl import HarborTask, SandboxInterface, evaluate, load_harbor_tasks, train

    assert callable(train)
    assert callable(evaluate)
    assert all(isinstance(task, HarborTask) for task in load_harbor_tasks("termrl/basics:train"))
    assert {"run_command", "read_file", "write_file", "send_heartbeat", "cleanup"} <= set(
        dir(SandboxInterface)
    )


def test_importing_termrl_loads_nothing_heavy() -> None:
    script = (
        "import sys, termrl; print([m for m in ('jax', 'harbor', 'litellm', 'tinker') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"
    )


def test_evaluate_is_a_function_whichever_part_was_imported_first() -> None:
    for first in ("import termrl.evaluate.summary", "import termrl.api", "import termrl"):
        script = f"{first}; from termrl import evaluate; import inspect; print(callable(evaluate))"
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert ended.stdout.strip() == "True", ended.stderr
