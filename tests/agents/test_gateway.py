"""A black-box agent, with a real OpenAI client, trained through the gateway."""

import json
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext

from termrl.agents.gateway import Gateway
from termrl.errors import UserError
from termrl.learn.datums import rollout_lessons
from termrl.policy.asking import Policy
from termrl.policy.budget import ContextBudget
from termrl.policy.transcript import segments_of
from termrl.rollout.outcome import Outcome

Bench = Any

openai.AsyncOpenAI(api_key="x").chat.completions  # noqa: B018 (its import takes seconds; here it is nobody's time)

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "shell",
            "description": "runs a command",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


class BlackBox(BaseAgent):
    """A loop that knows nothing of termrl: it reads the usual variables and asks whoever answers there."""

    @staticmethod
    def name() -> str:
        return "black-box"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        env = self.extra_env
        client = openai.AsyncOpenAI(
            base_url=env["OPENAI_BASE_URL"], api_key=env["OPENAI_API_KEY"], max_retries=0
        )
        messages: list[Any] = [{"role": "user", "content": instruction}]
        for _ in range(10):
            try:
                reply = await client.chat.completions.create(
                    model="whatever", messages=messages, tools=TOOLS, temperature=0.0, max_tokens=500
                )
            except openai.BadRequestError:
                return
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            for tool_call in message.tool_calls:
                function: Any = tool_call
                command = json.loads(function.function.arguments)["command"]
                result = await environment.exec(command)
                messages.append(
                    {"role": "tool", "tool_call_id": tool_call.id, "content": result.stdout or ""}
                )


def shell(command: str) -> str:
    return f"<tool_call>{json.dumps({'name': 'shell', 'arguments': {'command': command}})}</tool_call>"


async def test_what_a_black_box_asked_is_recorded_token_by_token_and_can_be_trained(bench: Bench) -> None:
    script = [shell("ls /app"), shell("echo hello > /app/hello.txt"), "Done."]
    rollout = await bench.run(script, agent=f"{__name__}:BlackBox")
    assert (rollout.outcome, rollout.reward) == (Outcome.SOLVED, 1.0), rollout.detail
    (segment,) = segments_of(rollout.turns)
    assert segment.turns == 3
    stop = bench.renderer.get_stop_token_ids()[0]
    sampled = [token for token, was in zip(segment.tokens, segment.mask, strict=True) if was]
    assert sampled == [token for text in script for token in (*bench.tokenizer.encode(text), stop)]
    (lesson,) = rollout_lessons(rollout.turns, 1.0)
    datum = lesson.datum()
    assert sum(datum.loss_fn_inputs["advantages"].tolist()) == len(sampled)


@pytest.mark.parametrize(
    ("settings", "outcome"),
    [
        ({"max_turns": 2}, Outcome.TURN_LIMIT),
        ({"context_limit": 900, "max_tokens": 200, "max_turns": 20}, Outcome.CONTEXT_EXHAUSTED),
    ],
    ids=["turn limit", "context"],
)
async def test_limits_hold_for_black_boxes_too(
    bench: Bench, settings: dict[str, Any], outcome: Outcome
) -> None:
    script = bench.script([shell("ls /app")], repeat_last=True)
    rollout = await bench.run(script, agent=f"{__name__}:BlackBox", **settings)
    assert (rollout.outcome, rollout.reward) == (outcome, 0.0), rollout.detail


@pytest.fixture
async def gateway() -> Any:
    made = Gateway()
    await made.start()
    yield made
    await made.stop()


async def test_without_a_rollouts_key_nothing_is_answered(bench: Bench, gateway: Gateway) -> None:
    policy = Policy(bench.script(["a", "b"]), bench.renderer, ContextBudget(2000, 100), seed=0)
    async with gateway.access(policy, max_turns=5, model_name="m") as access:
        assert access.base_url.startswith("http://127.0.0.1:")
        for key in ("", "wrong", access.key[:-1]):
            client = openai.AsyncOpenAI(base_url=access.base_url, api_key=key or "x", max_retries=0)
            with pytest.raises(openai.AuthenticationError):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key, max_retries=0)
        answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert answer.choices[0].message.content == "a"
        assert (await client.models.list()).data[0].id == "m"
        key = access.key
    late = openai.AsyncOpenAI(base_url=access.base_url, api_key=key, max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        await late.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
    assert len(policy.turns) == 1


async def test_a_client_that_wants_a_stream_gets_one(bench: Bench, gateway: Gateway) -> None:
    policy = Policy(bench.script(["streamed"]), bench.renderer, ContextBudget(2000, 100), seed=0)
    async with gateway.access(policy, max_turns=5, model_name="m") as access:
        client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key, max_retries=0)
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(parts) == "streamed"


@pytest.mark.parametrize("body", ["{", "[]", '{"messages": "x"}', '{"messages": [1]}'])
async def test_nonsense_is_refused_in_a_sentence(bench: Bench, gateway: Gateway, body: str) -> None:
    import aiohttp

    policy = Policy(bench.script([]), bench.renderer, ContextBudget(2000, 100), seed=0)
    async with gateway.access(policy, max_turns=5, model_name="m") as access, aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {access.key}"}
        async with http.post(f"{access.base_url}/chat/completions", data=body, headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["message"]


TUNNEL = """
import http.server, sys, urllib.request
target = sys.argv[1]

class Forward(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name: self.headers[name] for name in ("Authorization", "Content-Type")}
        with urllib.request.urlopen(urllib.request.Request(target + self.path, body, headers)) as answer:
            text = answer.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *words):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forward)
print("forwarding to", target, flush=True)
print("your address is http://127.0.0.1:%d" % server.server_port, flush=True)
server.serve_forever()
"""


async def test_a_tunnel_of_the_users_own_leads_to_the_gateway(bench: Bench, tmp_path: Path) -> None:
    program = tmp_path / "tunnel.py"
    program.write_text(TUNNEL)
    gateway = Gateway(tunnel=f"{sys.executable} {program} {{url}}")
    policy = Policy(bench.script(["through"]), bench.renderer, ContextBudget(2000, 100), seed=0)
    try:
        async with gateway.access(policy, max_turns=5, model_name="m") as access:
            client = openai.AsyncOpenAI(base_url=access.base_url, api_key=access.key, max_retries=0)
            answer = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x"}]
            )
            assert answer.choices[0].message.content == "through"
    finally:
        await gateway.stop()


@pytest.mark.parametrize("command", ["/no/such/program {url}", "true", "echo no address here"])
async def test_a_tunnel_that_does_not_come_up_is_said_so(bench: Bench, command: str) -> None:
    gateway = Gateway(tunnel=command)
    policy = Policy(bench.script([]), bench.renderer, ContextBudget(2000, 100), seed=0)
    with pytest.raises(UserError, match="gateway_tunnel"):
        async with gateway.access(policy, max_turns=5, model_name="m"):
            pass


async def test_a_port_that_is_taken_is_named(bench: Bench, gateway: Gateway) -> None:
    policy = Policy(bench.script([]), bench.renderer, ContextBudget(2000, 100), seed=0)
    async with gateway.access(policy, max_turns=5, model_name="m") as access:
        port = int(access.base_url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(UserError, match=f"port {port}"):
            await Gateway(port=port).start()
