"""A black-box agent that runs inside a sandbox without network: the gateway is all that it reaches."""

import json
import shlex
import socket
from typing import Any

import pytest
from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from termrl.rollout.outcome import Outcome

Bench = Any

# Inside there are only the host's own programs, so this client is of Python's standard library.
LOOP = r"""
import json, os, socket, subprocess, sys, urllib.error, urllib.request
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]

def ask(messages, key=key):
    body = json.dumps({"model": "m", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url + "/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

def code_of(connect):
    try:
        connect()
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError as error:
        return type(error).__name__
    return "reached"

others = [code_of(lambda: socket.create_connection(("127.0.0.1", int(port)), 2)) for port in sys.argv[2:]]
unkeyed = code_of(lambda: ask([{"role": "user", "content": "x"}], key="sk-wrong"))
outside = code_of(lambda: socket.create_connection(("192.0.2.1", 80), 2))
open("/app/seen", "w").write(" ".join([*others, unkeyed, outside]))
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    said = ask(messages)
    if not said.startswith("$ "):
        break
    ran = subprocess.run(["bash", "-c", said[2:]], capture_output=True, text=True)
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": ran.stdout}]
"""


class InsideAgent(BaseAgent):
    """Installed agents run like this: a program in the sandbox that knows two variables."""

    def __init__(self, *args: Any, ports: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ports = ports

    @staticmethod
    def name() -> str:
        return "inside"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        program = f"/usr/bin/python3 -c {shlex.quote(LOOP)} {shlex.quote(instruction)} {self._ports}"
        result = await environment.exec(program, env=self.extra_env)
        assert result.return_code == 0, result.stderr


@pytest.fixture
def host_port() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_the_gateway_is_reached_from_inside_and_nothing_else_is(bench: Bench, host_port: int) -> None:
    # The tests give away what the agent saw; by then the way out must be closed again.
    tests = (
        "#!/bin/bash\n"
        "grep -q '^ConnectionRefusedError 401 OSError$' /app/seen && [ -s /app/hello.txt ] && reward=1\n"
        'port=$(cat /app/port); (exec 3<>/dev/tcp/127.0.0.1/"$port") 2>/dev/null && reward=0\n'
        "echo ${reward:-0} > /logs/verifier/reward.txt\ncat /app/seen\n"
    )
    task = bench.write_task("inside", {"tests/test.sh": tests})
    note_port = "$ echo $OPENAI_BASE_URL | sed 's/.*:\\([0-9]*\\).*/\\1/' > /app/port"
    script = [note_port, "$ echo hello > /app/hello.txt", "Done."]
    rollout = await bench.run(
        script,
        task=task,
        agent=f"{__name__}:InsideAgent",
        agent_kwargs=(("ports", str(host_port)),),
        keep_trials="all",
    )
    seen = [path.read_text() for path in bench.directory.rglob("test-stdout.txt")]
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), (rollout.detail, seen)
    assert len(rollout.turns) == len(script)
    said = [bench.tokenizer.decode(list(turn.sampled)) for turn in rollout.turns]
    assert json.dumps(said).count("hello.txt") == 1


async def test_two_sandboxes_have_a_way_out_each_at_the_same_address(bench: Bench) -> None:
    import asyncio

    runner = bench.runner(agent=f"{__name__}:InsideAgent")
    script = ["$ echo hello > /app/hello.txt", "Done."]
    rollouts = await asyncio.gather(
        *(runner.run(bench.task, bench.script(script), seed=seed) for seed in range(2))
    )
    await runner.close()
    assert [rollout.outcome for rollout in rollouts] == [Outcome.SOLVED] * 2, rollouts[0].detail
