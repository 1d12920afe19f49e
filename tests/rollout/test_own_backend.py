"""The backend that the documentation writes from scratch runs Terminus-2, through the bridge."""

import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from termrl.rollout.outcome import Outcome
from termrl.sandbox import SandboxInterface
from termrl.sandbox.backends import Backend
from termrl.sandbox.choice import environment_settings
from termrl.sandbox.errors import UnsupportedEnvironment
from termrl.sandbox.fitness import refuse_unfit
from termrl.tasks.task import load_harbor_task

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "backends.md"
TOML = """[agent]
timeout_sec = 60
[verifier]
timeout_sec = 60
[environment]
docker_image = "small"
workdir = "/app"
"""


@pytest.fixture
def documented(tmp_path: Path) -> Iterator[types.ModuleType]:
    """The documentation's code as a module, with a real archive where it says /path/to."""
    small = tmp_path / "small"
    subprocess.run([sys.executable, str(ROOT / "scripts/small_root.py"), str(small), "tmux"], check=True)
    for folder in ("/lib/terminfo/s", "/usr/share/terminfo/s"):
        if Path(folder, "screen").exists():
            (small / "etc/terminfo/s").mkdir(parents=True, exist_ok=True)
            (small / "etc/terminfo/s/screen").write_bytes(Path(folder, "screen").read_bytes())
    subprocess.run(["tar", "-C", str(small), "-cf", str(tmp_path / "rootfs.tar"), "."], check=True)
    (code,) = re.findall(r"```python\n(import asyncio.*?)```", DOCS.read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 50
    code = code.replace("/path/to/rootfs.tar", str(tmp_path / "rootfs.tar"))
    module = types.ModuleType("documented_backend")
    sys.modules[module.__name__] = module
    exec(compile(code, str(DOCS), "exec"), module.__dict__)
    yield module
    del sys.modules[module.__name__]


async def test_a_backend_of_forty_lines_runs_terminus_2(
    bench: Any, say_hello: list[str], documented: types.ModuleType
) -> None:
    files = {"task.toml": TOML, "environment/Dockerfile": "FROM small\n"}
    task = bench.write_task("own", files)
    backend = Backend("documented_backend:folder_factory")
    backend.check()
    refuse_unfit([load_harbor_task(task.task_dir)], backend)
    rollout = await bench.run(
        say_hello,
        task=task,
        **environment_settings(backend, [load_harbor_task(task.task_dir)]),
    )
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), rollout.detail


async def test_it_is_a_sandbox_and_refuses_what_it_does_not_honour(
    bench: Any, documented: types.ModuleType
) -> None:
    task = bench.write_task("more", {"task.toml": TOML + "cpus = 2\n"})
    with pytest.raises(
        UnsupportedEnvironment, match="asks for cpus, which the sandbox factory folder_factory"
    ):
        refuse_unfit([load_harbor_task(task.task_dir)], Backend("documented_backend:folder_factory"))
    sandbox = await documented.folder_factory(task.task_dir / "environment", 100)
    assert isinstance(sandbox, SandboxInterface)
    result = await sandbox.run_command("echo hello > x; cat x; pwd", workdir="/tmp")
    assert result.stdout == "hello\n/tmp\n"
    assert (await sandbox.read_file("/tmp/x")).stdout == "hello\n"
    assert (await sandbox.run_command("sleep 9", timeout=1)).exit_code == 124
    await sandbox.cleanup()
