"""A killed engine, started again on its state directory, goes on; the client notices nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import tinker
from tinker import types

from termrl.engine.futures import Futures, Identity, Result
from termrl.engine.journal import Journal
from termrl.engine.keys import KEY_VARIABLE
from termrl.engine.protocol import EngineServer

KEY = "tml-test-of-restarts"
PROMPT = types.ModelInput.from_ints(list(range(2, 40)))


def lesson(step: int) -> list[types.Datum]:
    rng = np.random.default_rng(step)
    rows = [rng.integers(2, 97, 30).tolist() for _ in range(3)]
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(row[:-1]),
            loss_fn_inputs={"target_tokens": row[1:], "weights": [1.0] * 29},
        )
        for row in rows
    ]


class Served:
    """`python -m termrl.engine` on a fixed port, ended and started at will."""

    def __init__(self, model_dir: Path, state: Path, cache_dir: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._command = [sys.executable, "-m", "termrl.engine", "--durable", "--port", str(self.port)]
        self._command += ["--model", str(model_dir), "--state-dir", str(state), "--cache-dir", str(cache_dir)]
        self._log = state.with_name("log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, env=os.environ | {KEY_VARIABLE: KEY}
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), self._log.read_text()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def served(tmp_path: Path, model_dir: Path, cache_dir: Path) -> Iterator[Served]:
    engine = Served(model_dir, tmp_path / "state", cache_dir)
    engine.start()
    yield engine
    engine.kill()


def test_a_client_mid_run_goes_on_after_a_kill_with_the_same_bits(served: Served, model_dir: Path) -> None:
    service = tinker.ServiceClient(base_url=f"http://127.0.0.1:{served.port}", api_key=KEY)
    broken = service.create_lora_training_client(str(model_dir), rank=2, seed=4)
    whole = service.create_lora_training_client(str(model_dir), rank=2, seed=4)
    adam = types.AdamParams(learning_rate=1e-2)
    for step in range(3):
        whole.forward_backward(lesson(step), "cross_entropy").result()
        whole.optim_step(adam).result()
    expected = whole.forward(lesson(9), "cross_entropy").result().metrics["loss:sum"]

    broken.forward_backward(lesson(0), "cross_entropy").result()
    broken.optim_step(adam).result()
    snapshot = broken.save_weights_and_get_sampling_client()
    params = types.SamplingParams(max_tokens=8, seed=3, stop=[])
    before = snapshot.sample(PROMPT, 1, params).result().sequences[0].tokens
    named = broken.save_state("named").result().path
    broken.forward_backward(lesson(1), "cross_entropy").result()
    # Acknowledged or not, these are under way when the engine is killed.
    step_taken = broken.optim_step(adam)
    passed = broken.forward_backward(lesson(2), "cross_entropy")
    served.kill()
    served.start()
    step_taken.result()
    passed.result()
    broken.optim_step(adam).result()
    assert broken.forward(lesson(9), "cross_entropy").result().metrics["loss:sum"] == expected
    assert snapshot.sample(PROMPT, 1, params).result().sequences[0].tokens == before
    service.create_training_client_from_state_with_optimizer(named)
    service.close("success").result()


async def test_results_and_unfinished_requests_outlive_the_process(tmp_path: Path) -> None:
    first = Futures(Journal(tmp_path / "journal.db"))
    done, _ = first.submit(Identity("a", "s"), "asample", b"body a")
    open_, _ = first.submit(Identity("b", "s", "m"), "optim_step", b"body b")
    first.resolve(done, Result(b"answer", "application/x-protobuf"))
    journal = Journal(tmp_path / "journal.db")
    second = Futures(journal)
    entries = list(journal.requests())
    for entry in entries:
        second.restore(entry)
    assert [(entry.call, entry.body) for entry in entries] == [("asample", None), ("optim_step", b"body b")]
    found = await second.fetch(done.request_id, 1.0)
    assert found == Result(b"answer", "application/x-protobuf")
    assert await second.fetch(open_.request_id, 0.01) is None
    again, is_new = second.submit(Identity("b", "s", "m"), "optim_step", b"body b")
    assert (again.request_id, is_new) == (open_.request_id, False)
    journal.drop_session("s")
    assert list(journal.requests()) == []


def test_a_request_is_kept_until_its_effect_is_held_elsewhere(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.db")
    numbers = [journal.add_request(f"r{i}", f"k{i}", "s", "m", "optim_step", b"body") for i in range(3)]
    journal.put_result(numbers[0], b"answer", "application/json")
    journal.drop_request("r0")
    assert [entry.body for entry in journal.requests()] == [b"body"] * 3
    journal.put_result(numbers[1], b"answer", "application/json")
    journal.forget_bodies("m", numbers[2])
    left = {entry.request_id: (entry.body, entry.result) for entry in journal.requests()}
    assert left == {"r1": (None, b"answer"), "r2": (b"body", None)}


async def test_a_session_that_sends_no_heartbeat_is_over(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EngineServer(tmp_path / "state", [str(model_dir)], KEY)
    port = await server.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(
            f"http://127.0.0.1:{port}/api/v1/", headers={"X-API-Key": KEY}
        ) as client:
            async with client.post("create_session", json={}) as answer:
                session = {"session_id": (await answer.json())["session_id"]}
            await server.sessions.end_silent()
            async with client.post("session_heartbeat", json=session) as answer:
                assert answer.status == 200
            monkeypatch.setattr("termrl.engine.session_calls.SESSION_SECONDS", -1.0)
            await server.sessions.end_silent()
            async with client.post("session_heartbeat", json=session) as answer:
                assert answer.status == 410
    finally:
        await server.stop()
