"""Who can be evaluated besides our own engine: an OpenAI-compatible endpoint, the oracle, nobody."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from termrl import EvalConfig
from termrl.api import evaluate
from termrl.policy import chat
from termrl.policy.sampler import SamplingRefusedError

HELLO = {"keystrokes": "echo hello > /app/hello.txt\n", "duration": 0.1}
SAY_HELLO = [
    json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": True})
    for commands in ([HELLO], [])
]

type Reply = Callable[[dict[str, Any]], web.Response]


class Endpoint:
    """An OpenAI-compatible chat endpoint whose answers are a function of the request."""

    def __init__(self) -> None:
        self.base_url = ""
        self.requests: list[dict[str, Any]] = []
        self.reply: Reply = scripted

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        return self.reply(body)


def completion(message: dict[str, Any], finish_reason: str = "stop") -> web.Response:
    choice = {
        "index": 0,
        "finish_reason": finish_reason,
        "message": {"role": "assistant", "content": None, **message},
    }
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "scripted"}
    return web.json_response({**answer, "choices": [choice], "usage": usage})


def failure(status: int, text: str) -> web.Response:
    return web.json_response({"error": {"message": text, "type": "error", "code": status}}, status=status)


def scripted(body: dict[str, Any]) -> web.Response:
    """Says hello, then confirms, by how many answers the conversation has already."""
    said = sum(message["role"] == "assistant" for message in body["messages"])
    return completion({"content": SAY_HELLO[min(said, len(SAY_HELLO) - 1)]})


def with_bash(body: dict[str, Any]) -> web.Response:
    if any(message["role"] == "tool" for message in body["messages"]):
        return completion({"content": "Done."})
    arguments = json.dumps({"command": "echo hello > /app/hello.txt"})
    call = {"id": "call-1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return completion({"tool_calls": [call]}, "tool_calls")


@pytest.fixture
async def endpoint(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Endpoint]:
    monkeypatch.setattr(chat, "BACKOFF_SECONDS", 0.01)
    endpoint = Endpoint()
    application = web.Application()
    application.router.add_post("/v1/chat/completions", endpoint.serve)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield endpoint
    await runner.cleanup()


def config(tasks: Path, **settings: Any) -> EvalConfig:
    whole: dict[str, Any] = {"dataset": str(tasks), "run_root": str(tasks.parent / "runs"), **settings}
    return EvalConfig(**whole)


def against(tasks: Path, endpoint: Endpoint, **settings: Any) -> EvalConfig:
    return config(tasks, model_name="openai/scripted", base_url=endpoint.base_url, **settings)


async def test_an_openai_compatible_endpoint_is_evaluated_with_terminus_2(
    tasks: Path, endpoint: Endpoint
) -> None:
    result = await evaluate(against(tasks, endpoint, attempts=2, temperature=0.3, max_tokens=77))
    assert result.accuracy.value == 0.5
    assert result.results["model_service"] == "litellm"
    usage = result.results["usage"]
    assert usage["turns"]["total"] == 16
    assert usage["prompt_tokens"]["total"] == 1600
    assert usage["sampled_tokens"]["total"] == 160
    assert {request["temperature"] for request in endpoint.requests} == {0.3}
    assert {request["max_tokens"] for request in endpoint.requests} == {77}
    assert len({request["seed"] for request in endpoint.requests}) == 16
    record = json.loads((result.run_path / "rollouts" / "0000-test_task-0.0.json").read_text())
    assert "echo hello" in json.dumps(record["turns"]), "what was said is not in the rollout's file"


async def test_an_endpoint_is_evaluated_with_the_bash_agent(tasks: Path, endpoint: Endpoint) -> None:
    endpoint.reply = with_bash
    result = await evaluate(against(tasks, endpoint, agent="bash", task_indices="0,2"))
    assert result.accuracy.value == 0.5, [rollout.detail for rollout in result.rollouts]
    assert endpoint.requests[0]["tools"][0]["function"]["name"] == "bash"
    sent = next(m for m in endpoint.requests[-1]["messages"] if m.get("tool_calls"))
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"])["command"].startswith("echo")


async def test_a_key_that_the_endpoint_refuses_stops_the_evaluation(tasks: Path, endpoint: Endpoint) -> None:
    endpoint.reply = lambda body: failure(401, "wrong key")
    with pytest.raises(SamplingRefusedError, match="the model service refused to answer") as refusal:
        await evaluate(against(tasks, endpoint, task_indices="0"))
    assert refusal.value.exit_code == 2


async def test_an_endpoint_that_is_down_is_never_the_models_failure(tasks: Path, endpoint: Endpoint) -> None:
    answers = iter([failure(503, "busy"), *[None] * 99])
    endpoint.reply = lambda body: next(answers) or scripted(body)
    result = await evaluate(against(tasks, endpoint, task_indices="0"))
    assert result.accuracy.value == 1.0
    endpoint.reply = lambda body: failure(500, "broken")
    result = await evaluate(against(tasks, endpoint, task_indices="1"))
    assert result.excluded == 1
    assert result.results["counts"]["outcomes"] == {"model_unavailable": 1}


async def test_a_full_context_is_scored(tasks: Path, endpoint: Endpoint) -> None:
    text = "This model's maximum context length is 10 tokens. However, you requested 20 tokens."
    endpoint.reply = lambda body: failure(400, text)
    result = await evaluate(against(tasks, endpoint, task_indices="0", enable_summarize=False))
    assert result.results["counts"]["outcomes"] == {"context_exhausted": 1}
    assert result.accuracy.value == 0.0


async def test_the_oracle_passes_and_doing_nothing_fails(tasks: Path) -> None:
    oracle = await evaluate(config(tasks, agent="oracle", timeout_multiplier=2))
    assert oracle.accuracy.value == 1.0, [rollout.detail for rollout in oracle.rollouts]
    assert oracle.results["model_service"] == "none"
    trials = [json.loads(path.read_text()) for path in oracle.run_path.glob("trials/*/config.json")]
    assert [trial["timeout_multiplier"] for trial in trials] == [2.0] * 4
    nothing = await evaluate(config(tasks, agent="nop", attempts=2, temperature=0))
    assert nothing.accuracy.value == 0.0
    assert nothing.excluded == 0
    assert nothing.results["usage"]["turns"]["total"] == 0


XML_HELLO = [
    "<response><analysis>a</analysis><plan>p</plan><commands>"
    f"{keystrokes}</commands><task_complete>true</task_complete></response>"
    for keystrokes in ('<keystrokes duration="0.1">echo hello > /app/hello.txt\n</keystrokes>', "")
]


@pytest.mark.timeout(600)
async def test_the_command_hands_the_agent_its_own_settings_and_prices_tokens_by_the_users_file(
    tasks: Path, endpoint: Endpoint
) -> None:
    def in_xml(body: dict[str, Any]) -> web.Response:
        said = sum(message["role"] == "assistant" for message in body["messages"])
        return completion({"content": XML_HELLO[min(said, 1)]})

    endpoint.reply = in_xml
    prices = tasks.parent / "prices.toml"
    prices.write_text('[models]\n"openai/scripted" = { prefill = 2, sample = 10, train = 0 }\n')
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "termrl", "eval", f"dataset={tasks}", "task_indices=0,2"),
        *("model_name=openai/scripted", f"base_url={endpoint.base_url}", "agent_kwargs.parser_name=xml"),
        *(f"prices={prices}", f"output_path={tasks.parent / 'out'}", f"run_root={tasks.parent / 'runs'}"),
        env=os.environ | {"OPENAI_API_KEY": "k"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(command.communicate(), 500)
    assert command.returncode == 0, said.decode()
    results = json.loads((tasks.parent / "out" / "results.json").read_text())
    assert results["scores"]["excluded_left_out"]["accuracy"]["value"] == 0.5, (
        "the answers in XML were not understood"
    )
    assert "<keystrokes" in endpoint.requests[0]["messages"][0]["content"]
    usage = results["usage"]
    tokens = 2 * usage["prompt_tokens"]["total"] + 10 * usage["sampled_tokens"]["total"]
    assert usage["cost_usd"]["total"] == pytest.approx(tokens / 1e6)
    assert usage["cost_usd"]["total"] > 0
    assert usage["cost_usd"]["rollouts"] == 2
    assert "cost in dollars" in (tasks.parent / "out" / "results.md").read_text()
