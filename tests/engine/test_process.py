from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from termrl.engine.keys import new_api_key
from termrl.engine.process import EngineDied, EngineStartError, PreparedEngine, start_engine
from termrl.engine.server import EngineServer, ServeError, serve
from termrl.engine.weights import ModelFilesError


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("removed", "said"),
    [
        ("tokenizer.json", r"no tokenizer \(tokenizer.json\)"),
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
    ],
)
async def test_an_incomplete_model_directory_is_one_clear_sentence(
    tmp_path: Path, model_dir: Path, removed: str, said: str
) -> None:
    for file in model_dir.iterdir():
        if file.name != removed:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ModelFilesError, match=said) as problem:
        EngineServer(tmp_path / "state", [str(tmp_path)], new_api_key())
    message = str(problem.value)
    assert str(tmp_path) in message
    assert "\n" not in message


async def test_an_engine_that_cannot_start_says_why(tmp_path: Path, model_dir: Path) -> None:
    for file in model_dir.iterdir():
        if file.name != "tokenizer.json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(EngineStartError, match=r"no tokenizer \(tokenizer.json\)") as problem:
        async with start_engine(tmp_path / "state", models=[str(tmp_path)], log_path=tmp_path / "log"):
            pass
    assert "Traceback" not in str(problem.value)


async def test_an_engine_that_dies_is_reported_with_the_end_of_its_log(
    tmp_path: Path, model_dir: Path
) -> None:
    async def use() -> None:
        async with start_engine(
            tmp_path / "state", models=[str(model_dir)], log_path=tmp_path / "log"
        ) as engine:
            with (tmp_path / "log").open("a") as log:
                log.write("the last words\n")
            os.kill(engine.pid, signal.SIGKILL)
            await engine.wait()

    with pytest.raises(EngineDied, match=r"code -9\.(.|\n)*the last words") as problem:
        await use()
    assert "Traceback" not in str(problem.value)


async def test_an_engine_ends_with_its_context(tmp_path: Path, model_dir: Path) -> None:
    async with start_engine(tmp_path / "state", models=[str(model_dir)], log_path=tmp_path / "log") as engine:
        assert engine.running
        assert engine.api_key not in repr(engine)
        assert engine.api_key not in Path(f"/proc/{engine.pid}/cmdline").read_text()
        assert engine.base_url.startswith("http://127.0.0.1:")
    assert not is_alive(engine.pid)


def test_an_engine_dies_with_the_process_that_started_it(tmp_path: Path, model_dir: Path) -> None:
    script = f"""
import asyncio
from pathlib import Path
from termrl.engine.process import start_engine

async def main():
    place = Path({str(tmp_path)!r})
    async with start_engine(place / "state", models=[{str(model_dir)!r}], log_path=place / "log") as engine:
        print(engine.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while is_alive(pid):
        assert time.monotonic() < deadline, "the engine outlived its parent"
        time.sleep(0.05)


async def test_a_prepared_process_becomes_the_engine(tmp_path: Path, model_dir: Path) -> None:
    prepared = PreparedEngine()
    starting = start_engine(
        tmp_path / "state", models=[str(model_dir)], log_path=tmp_path / "log", prepared=prepared
    )
    async with starting as engine:
        assert engine.pid == prepared.process.pid
    assert not is_alive(engine.pid)


def test_a_prepared_process_that_nobody_needs_ends() -> None:
    prepared = PreparedEngine()
    prepared.abandon()
    assert not is_alive(prepared.process.pid)


def test_listening_beyond_this_machine_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="needs a key of your own"):
        serve("0.0.0.0", 0, ["termrl/tiny"], tmp_path, None)


def test_a_key_the_sdk_would_not_send_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="must start with 'tml-'"):
        EngineServer(tmp_path, [], "secret")


async def test_a_port_that_is_taken_is_said(tmp_path: Path, model_dir: Path) -> None:
    first = EngineServer(tmp_path / "a", [str(model_dir)], new_api_key())
    port = await first.start("127.0.0.1", 0)
    try:
        with pytest.raises(ServeError, match=f"cannot listen on 127.0.0.1:{port}"):
            await asyncio.to_thread(serve, "127.0.0.1", port, [str(model_dir)], tmp_path / "b", new_api_key())
    finally:
        await first.stop()
