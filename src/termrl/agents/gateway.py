"""An OpenAI-compatible endpoint for agents that are black boxes: what they ask is asked of the policy.

Each rollout has a key of its own, and without a key there is no answer. Sampling settings are the run's,
whatever a client asks for; only `max_tokens` may be lower. The tokens that were sampled stay here, in the
rollout's transcript. It listens on loopback, and where it is let in on that of a sandbox without network;
sandboxes elsewhere reach it by a URL that leads here (`gateway_url=` to `gateway_port=`), or through a tunnel
program of the user's (`gateway_tunnel=`).
"""

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from termrl.agents.ending import Ending
from termrl.agents.tunnel import Tunnel
from termrl.errors import UserError
from termrl.policy.asking import Answer, ContextExhausted, Policy
from termrl.policy.conversation import Message

_LARGEST_REQUEST = 64 << 20


class GatewayError(UserError):
    """The gateway can't be where it was to be."""


@dataclass(slots=True)
class GatewayAccess:
    """One rollout's way to the policy."""

    policy: Policy
    base_url: str
    key: str
    max_turns: int
    model_name: str
    calls: int = 0
    ending: Ending | None = None
    env: dict[str, str] = field(init=False)
    """What tells an agent where to ask, by the names that the usual clients read."""

    def __post_init__(self) -> None:
        urls = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "LLM_BASE_URL", "OPENAI_HOST")
        keys = ("OPENAI_API_KEY", "LLM_API_KEY")
        self.env = {**dict.fromkeys(urls, self.base_url), **dict.fromkeys(keys, self.key)}


class Gateway:
    def __init__(self, url: str | None = None, port: int = 0, tunnel: str | None = None) -> None:
        """`url` leads to `port` on this machine from where the agents are; so does what `tunnel` prints."""
        self._url = url.rstrip("/") if url else None
        self._port = port
        self._tunnel_command = tunnel
        self._tunnel: Tunnel | None = None
        self._open: dict[str, GatewayAccess] = {}
        self._runner: web.AppRunner | None = None
        self._local: str | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        async with self._starting:
            if self._runner is None:
                await self._start()

    async def _start(self) -> None:
        app = web.Application(client_max_size=_LARGEST_REQUEST)
        app.add_routes(
            [web.post("/v1/chat/completions", self._complete), web.get("/v1/models", self._models)]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
        except OSError as error:
            await runner.cleanup()
            raise GatewayError(
                f"The gateway can't listen on port {self._port}: {error.strerror}; set another gateway_port."
            ) from error
        local = self._local = f"http://127.0.0.1:{runner.addresses[0][1]}"
        if self._tunnel_command is not None:
            try:
                self._tunnel = await Tunnel.start(self._tunnel_command, local)
            except BaseException:
                await runner.cleanup()
                raise
            self._url = self._tunnel.url
        self._url = self._url or local
        self._runner = runner

    async def stop(self) -> None:
        if self._tunnel is not None:
            await self._tunnel.stop()
            self._tunnel = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def own_port(self) -> int | None:
        """The port of the address that agents are told, where that is this machine's loopback."""
        if self._runner is None or self._url != self._local:
            return None
        return int(self._runner.addresses[0][1])

    async def listen_on(self, listener: socket.socket) -> web.BaseSite:
        """Answer there too, until the site is stopped; keys are asked for as everywhere."""
        assert self._runner is not None
        site = web.SockSite(self._runner, listener)
        await site.start()
        return site

    @asynccontextmanager
    async def access(
        self, policy: Policy, *, max_turns: int, model_name: str
    ) -> AsyncIterator[GatewayAccess]:
        """A key to the policy for the length of the block; afterwards it opens nothing."""
        await self.start()
        key = f"sk-{secrets.token_urlsafe(32)}"
        access = GatewayAccess(policy, f"{self._url}/v1", key, max_turns, model_name)
        self._open[key] = access
        try:
            yield access
        finally:
            del self._open[key]

    def _access(self, request: web.Request) -> GatewayAccess:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        access = self._open.get(given)
        if access is None:
            raise _refusal(web.HTTPUnauthorized, "there is no rollout with this key", "invalid_api_key")
        return access

    async def _models(self, request: web.Request) -> web.Response:
        access = self._access(request)
        model = {"id": access.model_name, "object": "model", "created": 0, "owned_by": "termrl"}
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        access = self._access(request)
        asked = _read(await request.read())
        if access.calls >= access.max_turns:
            access.ending = Ending.TURN_LIMIT
            raise _refusal(
                web.HTTPBadRequest, f"the turn limit of {access.max_turns} is reached", "turn_limit"
            )
        access.calls += 1
        try:
            answer = await access.policy.ask(
                _messages(asked["messages"]), tools=_tools(asked), max_tokens=_most_tokens(asked)
            )
        except ContextExhausted as error:
            access.ending = Ending.CONTEXT_EXHAUSTED
            raise _refusal(web.HTTPBadRequest, str(error), "context_length_exceeded") from error
        except Exception as error:
            raise _refusal(web.HTTPServiceUnavailable, str(error), "model_unavailable") from error
        reply = _reply(answer, access)
        return await _stream(request, reply) if asked.get("stream") else web.json_response(reply)


def _read(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise _refusal(web.HTTPBadRequest, f"the request is not JSON: {error}", "invalid_request") from error
    messages = asked.get("messages") if isinstance(asked, dict) else None
    if not isinstance(messages, list) or not messages or not all(_is_message(each) for each in messages):
        raise _refusal(web.HTTPBadRequest, "messages must be a list of messages", "invalid_request")
    if asked.get("n", 1) != 1:
        raise _refusal(web.HTTPBadRequest, "one answer at a time: n must be 1", "invalid_request")
    return asked  # type: ignore[no-any-return]


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """With content as text: lists of parts are joined, images are refused."""
    return [{**each, "role": _role(each["role"]), "content": _text(each.get("content"))} for each in messages]


def _role(role: str) -> str:
    return "system" if role == "developer" else role


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("text", "input_text"):
            raise _refusal(web.HTTPBadRequest, "only text can be asked of this model", "invalid_request")
        parts.append(str(part["text"]))
    return "".join(parts)


def _tools(asked: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    tools = [tool["function"] for tool in asked.get("tools") or () if tool.get("type") == "function"]
    return tools or None


def _most_tokens(asked: Mapping[str, Any]) -> int | None:
    value = asked.get("max_completion_tokens") or asked.get("max_tokens")
    return value if isinstance(value, int) and value > 0 else None


def _reply(answer: Answer, access: GatewayAccess) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in answer.tool_calls
        ]
    finish = "length" if answer.cut else "tool_calls" if answer.tool_calls else "stop"
    prompt, sampled = answer.turn.prompt_length, answer.turn.sampled_count
    return {
        "id": f"chatcmpl-{access.calls}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": access.model_name,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled},
    }


async def _stream(request: web.Request, reply: dict[str, Any]) -> web.StreamResponse:
    """The whole answer as one event, for clients that will only read a stream."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    (choice,) = reply["choices"]
    calls = choice["message"].get("tool_calls")
    delta = {**choice["message"]}
    if calls:
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    head = {**reply, "object": "chat.completion.chunk"}
    said = {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    said.pop("usage")
    ended = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    for event in (json.dumps(said), json.dumps(ended), "[DONE]"):
        await response.write(f"data: {event}\n\n".encode())
    await response.write_eof()
    return response


def _refusal(kind: type[web.HTTPException], message: str, code: str) -> web.HTTPException:
    body = {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    return kind(text=json.dumps(body), content_type="application/json")
